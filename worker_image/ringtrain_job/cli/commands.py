"""Table of the commands of `ringtrain`, from which it prints its help without importing the commands.

A distribution adds commands by an entry point of the group `ringtrain.commands` that names a table like this one.
`ringtrain --help` reads the tables only; a command's module is imported when the command runs.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class LazyCommand:
    """Entry of the table: a command that is imported only when it runs.

    `load`: `module:name` of the click command. `help`: help text in the list of commands, at most 60 characters.
    `hidden`: whether the list omits the command, because only programs use it. `meant`: names of the command in other
    tools.
    """

    name: str
    load: str
    help: str
    hidden: bool = False
    meant: tuple[str, ...] = ()


COMMANDS = (
    LazyCommand("agent", "ringtrain_job.cli.pods:agent", "Run this pod's ranks and send their output.", True),
    LazyCommand("bench", "ringtrain_job.cli.bench:bench", "Measure collectives on this machine."),
    LazyCommand("completion", "ringtrain_job.cli.main:completion", "Print the completion script of a shell."),
    LazyCommand("data-worker", "ringtrain_job.cli.pods:data_worker", "Load batches for the job's ranks.", True),
    LazyCommand("launcher", "ringtrain_job.cli.pods:launcher", "Coordinate the job's workers.", True),
    LazyCommand("logs", "ringtrain_job.cli.logs:logs", "Print the output of a run's ranks."),
    LazyCommand(
        "run",
        "ringtrain_job.cli.run:run",
        "Run COMMAND as N ranks, with one merged log.",
        meant=("start", "torchrun", "local"),
    ),
    LazyCommand("timeline", "ringtrain_job.cli.timeline:timeline", "Print the parts of a step's time."),
)
