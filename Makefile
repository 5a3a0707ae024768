# Few commands; `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PATH := $(abspath $(BIN)):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo test lint generate verify clean

help:  ## list the commands
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.installed: requirements-dev.txt operator/pyproject.toml worker_image/pyproject.toml $(wildcard worker_image/ringtrain/kernels/native/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --upgrade pip
	$(BIN)/pip install -qq -e operator -e 'worker_image[examples]' -r requirements-dev.txt
	@touch $@

$(VENV)/.frameworks: requirements-frameworks.txt $(VENV)/.installed
	$(BIN)/pip install --quiet -r requirements-frameworks.txt
	@touch $@

venv: $(VENV)/.installed  ## make the virtual environment with both distributions

demo: $(VENV)/.installed  ## train on handwritten digits: 2 workers x 2 slots on this machine
	$(BIN)/dtj local manifests/samples/digits-ring.yaml

test: $(VENV)/.frameworks  ## everything that passes without a cluster
	$(BIN)/pytest -q

lint: $(VENV)/.installed  ## ruff, mypy --strict, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

generate: $(VENV)/.installed  ## regenerate protobuf code, manifests and reference pages
	$(BIN)/python -m ringtrain_operator.generate .
	$(BIN)/python charts/generate.py .
	$(BIN)/python proto/generate.py

verify: generate  ## regenerate, then no diff
	git diff --exit-code -- manifests charts docs worker_image/ringtrain/gen

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
