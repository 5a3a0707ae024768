"""The agent's part of an MPI job: it starts mpirun's daemons (orted, hydra) and watches the ranks that they start."""
