"""The command `dtj`, also installed as `kubectl-dtj`: one subcommand a file."""
