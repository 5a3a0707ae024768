"""Entry point of `python -m ringtrain`: run the `ringtrain` command."""

from ringtrain_job.cli.entry import ringtrain

ringtrain()
