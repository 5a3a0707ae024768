"""Table of the commands that this plugin adds to `ringtrain`."""

from ringtrain_job.cli.commands import LazyCommand

COMMANDS = (
    LazyCommand("remote-agent", "ringtrain_hosts.remote_agent:remote_agent", "Run this host's agent of a run.", True),
)
