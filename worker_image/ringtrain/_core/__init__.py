"""Internal packages of the library: worlds, transports, communicators, reductions, process groups and negotiation."""
