"""The `ringtrain` command."""
