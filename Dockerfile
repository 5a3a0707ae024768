# Images from one file, `make images` builds them all:
#   docker build --target worker   -t ghcr.io/ringtrain/worker:0.1.0 .
#   docker build --target agent    -t ghcr.io/ringtrain/agent:0.1.0 .
#   docker build --target operator -t ghcr.io/ringtrain/operator:0.1.0 .
# worker-torch, worker-tensorflow and worker-jax are the worker and a framework. All run as user 65532 (or any other) with a
# read-only root file system; none has a compiler, pip, an ssh server or a file that gives rights away. docs/images.md.
ARG BASE=debian:trixie-slim

FROM ${BASE} AS python
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* \
    && groupadd --gid 65532 ringtrain \
    && useradd --uid 65532 --gid 65532 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin ringtrain \
    && find / -xdev -type f -perm /6000 -exec chmod ug-s {} +

# Packages are built and installed from here: pip stays in an environment of its own, outside of what goes on.
FROM python AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv ca-certificates \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/venv
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PYTHON=/opt/venv/bin/python

FROM build AS operator-build
COPY operator /src/operator
# rich needs pygments (10 MB) for source code, which nothing shows here.
RUN /opt/pip/bin/pip install '/src/operator[controller]' \
    && /opt/pip/bin/pip uninstall --yes pygments

FROM build AS worker-build
# The compiler stays here: only what it built goes on.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev libopenmpi-dev openmpi-bin \
    && rm -rf /var/lib/apt/lists/*
COPY worker_image /src/worker_image
COPY plugins/data_service /src/plugins/data_service
COPY plugins/diloco /src/plugins/diloco
COPY plugins/hosts /src/plugins/hosts
COPY plugins/mpi /src/plugins/mpi
COPY plugins/page /src/plugins/page
COPY plugins/sinks /src/plugins/sinks
RUN /opt/pip/bin/pip install '/src/worker_image[mpi,storage]' /src/plugins/data_service /src/plugins/diloco /src/plugins/hosts /src/plugins/mpi /src/plugins/page /src/plugins/sinks \
    && ls /opt/venv/lib/python3*/site-packages/ringtrain/_core/kernels/_native*.so \
    && find /opt/venv -type d -name tests -prune -exec rm -r {} +
COPY examples /opt/ringtrain/examples
RUN mpicc -O2 -o /opt/ringtrain/examples/mpi/pi /opt/ringtrain/examples/mpi/pi.c -lm \
    && python3 -m compileall -q /opt/ringtrain/examples

FROM build AS agent-build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev \
    && rm -rf /var/lib/apt/lists/*
COPY worker_image /src/worker_image
COPY plugins/mpi /src/plugins/mpi
COPY plugins/page /src/plugins/page
COPY plugins/sinks /src/plugins/sinks
RUN /opt/pip/bin/pip install '/src/worker_image[storage]' /src/plugins/mpi /src/plugins/page '/src/plugins/sinks[otel]' \
    && /opt/venv/bin/python /src/worker_image/standalone/build.py /agent storage otel \
    && /agent/bin/ringtrain --version

# What the operator brings into pods of any image: agent and launcher with their own Python, libraries and loader, and
# nothing else. The kubelet mounts this image, or a first container copies it.
FROM scratch AS agent
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="ringtrain-agent" \
      org.opencontainers.image.description="Ringtrain's agent and launcher, for pods of any image" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=agent-build /agent /
USER 65532:65532
ENTRYPOINT ["/bin/ringtrain"]

FROM python AS operator
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="ringtrain-operator" \
      org.opencontainers.image.description="Runs DistributedTrainingJobs on Kubernetes" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=operator-build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp
USER 65532:65532
ENTRYPOINT ["ringtrain-operator"]

FROM python AS worker
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="ringtrain-worker" \
      org.opencontainers.image.description="Ringtrain's training runtime, worker agent and launcher, with Open MPI and examples" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# mpirun and its library. An ssh client comes with the package, which nothing here uses; a server does not. Debian's UCX
# brings HIP and LLVM (270 MB) for a module that it loads where there are AMD GPUs: without them it goes without that one.
RUN apt-get update \
    && apt-get install -y --no-install-recommends openmpi-bin \
    && rm -f /usr/lib/*/libamdhip64.so* /usr/lib/*/libhsa-runtime64.so* /usr/lib/*/libamd_comgr.so* /usr/lib/*/libLLVM*.so* \
        /usr/lib/llvm-*/lib/libLLVM*.so* /usr/lib/*/libz3.so* \
    && ompi_info > /dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* \
    && find / -xdev -type f -perm /6000 -exec chmod ug-s {} + \
    && install -d -o 65532 -g 65532 /var/log/ringtrain /checkpoints
COPY --from=worker-build /opt/venv /opt/venv
COPY --from=worker-build /opt/ringtrain /opt/ringtrain
# By this the operator's agent finds that it need not run in this image's place.
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp RINGTRAIN_IMAGE_VERSION=${VERSION}
WORKDIR /opt/ringtrain
USER 65532:65532
CMD ["ringtrain", "--help"]

# The frameworks are one layer each on the worker; pip and the certificates it needs are there only while it runs.
# Which build of one is installed is the builder's choice: a requirement, and pip's own options (--index-url,
# --find-links) for where it is.
FROM worker AS worker-torch
ARG TORCH="torch==2.13.0"
ARG TORCH_PIP_OPTIONS=""
LABEL org.opencontainers.image.title="ringtrain-worker-torch"
USER root
RUN --mount=type=bind,from=build,source=/opt/pip,target=/opt/pip \
    --mount=type=bind,from=build,source=/etc/ssl/certs,target=/etc/ssl/certs \
    --mount=type=bind,source=plugins/torch,target=/src/torch,rw \
    /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir ${TORCH_PIP_OPTIONS} "${TORCH}" \
    && /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-deps /src/torch
USER 65532:65532

FROM worker AS worker-tensorflow
ARG TENSORFLOW="tensorflow-cpu>=2.20"
ARG TENSORFLOW_PIP_OPTIONS=""
LABEL org.opencontainers.image.title="ringtrain-worker-tensorflow"
USER root
RUN --mount=type=bind,from=build,source=/opt/pip,target=/opt/pip \
    --mount=type=bind,from=build,source=/etc/ssl/certs,target=/etc/ssl/certs \
    --mount=type=bind,source=plugins/tensorflow,target=/src/tensorflow,rw \
    --mount=type=bind,source=plugins/graphcore,target=/src/graphcore,rw \
    /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir ${TENSORFLOW_PIP_OPTIONS} "${TENSORFLOW}" "keras>=3.11" \
    && /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-deps /src/tensorflow /src/graphcore
USER 65532:65532

FROM worker AS worker-jax
ARG JAX="jax==0.10.2"
ARG JAX_PIP_OPTIONS=""
LABEL org.opencontainers.image.title="ringtrain-worker-jax"
USER root
RUN --mount=type=bind,from=build,source=/opt/pip,target=/opt/pip \
    --mount=type=bind,from=build,source=/etc/ssl/certs,target=/etc/ssl/certs \
    --mount=type=bind,source=plugins/jax,target=/src/jax,rw \
    /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir ${JAX_PIP_OPTIONS} "${JAX}" optax \
    && /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-deps /src/jax
USER 65532:65532
