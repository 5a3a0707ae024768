"""`python -m ringtrain`: the `ringtrain` command."""

from ringtrain.cli.main import main

main()
