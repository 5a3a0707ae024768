"""Commands that this plugin adds to `ringtrain`."""

from ringtrain_job.cli.commands import LazyCommand

COMMANDS = (LazyCommand("rsh", "ringtrain_mpi.rsh_command:rsh", "Run a command in a worker; used by mpirun.", True),)
