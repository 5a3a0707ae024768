# An image of somebody else's with an MPI program: Open MPI and examples/mpi/pi.c, nothing of Ringtrain. run.sh builds it.
FROM debian:trixie-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev libopenmpi-dev openmpi-bin
COPY examples/mpi/pi.c /pi.c
RUN mpicc -O2 -o /pi /pi.c -lm

FROM debian:trixie-slim
RUN apt-get update && apt-get install -y --no-install-recommends openmpi-bin && rm -rf /var/lib/apt/lists/*
COPY --from=build /pi /pi
USER 1000:1000
