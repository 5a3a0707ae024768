"""The agent's part of an MPI job: mpirun's daemons are its children, and ranks report to it."""
