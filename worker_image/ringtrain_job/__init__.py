"""Programs beside the ranks: agent, launcher, log store and the command."""
