"""The launcher's part of an MPI job: mpirun's command line and environment, and the daemons that it requests."""
