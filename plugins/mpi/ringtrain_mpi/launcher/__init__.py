"""The launcher's part of an MPI job: run mpirun, start its daemons through agents, decide how the attempt ended."""
