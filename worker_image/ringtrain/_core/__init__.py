"""Internal packages: worlds, transports, communicators, reductions, process groups and their negotiation."""
