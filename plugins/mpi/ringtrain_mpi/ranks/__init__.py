"""Part of the plugin that runs in the ranks: collectives over MPI, and rendezvous of ranks that mpirun started."""
