"""What no script imports: worlds, transports, communicators, reductions, process groups and their negotiation."""
