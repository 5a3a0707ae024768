"""What runs beside the ranks: agent, launcher, log store, page, MPI daemons and the command."""
