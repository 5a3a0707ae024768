"""Command `dtj`, also installed as `kubectl-dtj`. Each subcommand has one file."""
