"""What runs beside the ranks: agent, launcher, log store, page and the command."""
