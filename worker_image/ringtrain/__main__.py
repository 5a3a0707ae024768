"""Entry point of `python -m ringtrain`: run the `ringtrain` command."""

from ringtrain_job.cli.main import main

main()
