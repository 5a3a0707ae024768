"""`python -m ringtrain`: the `ringtrain` command."""

from ringtrain_job.cli.main import main

main()
