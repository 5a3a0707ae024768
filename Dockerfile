# Two images from one file:
#   docker build --target worker   -t ghcr.io/ringtrain/worker:0.1.0 .
#   docker build --target operator -t ghcr.io/ringtrain/operator:0.1.0 .
# Both run as user 65532 with a read-only root file system; neither has a compiler, pip or an ssh server.
ARG BASE=debian:trixie-slim

FROM ${BASE} AS python
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 65532 ringtrain \
    && useradd --uid 65532 --gid 65532 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin ringtrain

# Wheels are built and installed here, so that pip and build tools stay out of the images.
FROM python AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv ca-certificates \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/venv

FROM build AS operator-build
COPY operator /src/operator
RUN /opt/venv/bin/pip install --no-cache-dir /src/operator && /opt/venv/bin/pip uninstall --yes --quiet pip

FROM build AS worker-build
# The compiler stays here: only what it built goes on.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev libopenmpi-dev openmpi-bin \
    && rm -rf /var/lib/apt/lists/*
COPY worker_image /src/worker_image
RUN /opt/venv/bin/pip install --no-cache-dir '/src/worker_image[examples,mpi]' && /opt/venv/bin/pip uninstall --yes --quiet pip
COPY examples/mpi/pi.c /src/pi.c
RUN mpicc -O2 -o /opt/pi /src/pi.c -lm

FROM python AS operator
COPY --from=operator-build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp
USER 65532:65532
ENTRYPOINT ["ringtrain-operator"]

FROM python AS worker
# mpirun and its library. An ssh client comes with the package, which nothing here uses; a server does not.
RUN apt-get update && apt-get install -y --no-install-recommends openmpi-bin && rm -rf /var/lib/apt/lists/*
COPY --from=worker-build /opt/venv /opt/venv
COPY examples /opt/ringtrain/examples
COPY --from=worker-build /opt/pi /opt/ringtrain/examples/mpi/pi
RUN install -d -o 65532 -g 65532 /var/log/ringtrain /checkpoints
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp
WORKDIR /opt/ringtrain
USER 65532:65532
CMD ["ringtrain", "--help"]
