"""Programs that start and watch ranks: agent, launcher, log store and the command."""
