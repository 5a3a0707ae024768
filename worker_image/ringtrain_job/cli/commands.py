"""The commands of `ringtrain`. A distribution adds its own by an entry point of the group `ringtrain.commands`, which
names a table like this one: `ringtrain --help` reads tables alone, and a command's module is loaded when it runs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LazyCommand:
    """`load`: module and click command, as `module:name`. `help`: its line in the list, at most 60 characters.
    `hidden`: it is for programs, and not in the list."""

    name: str
    load: str
    help: str
    hidden: bool = False


COMMANDS = (
    LazyCommand("agent", "ringtrain_job.cli.pods:agent", "Run this pod's ranks and ship what they write.", True),
    LazyCommand("bench", "ringtrain_job.cli.bench:bench", "Measure collectives on this machine."),
    LazyCommand("completion", "ringtrain_job.cli.main:completion", "Print the completion script of a shell."),
    LazyCommand("data-worker", "ringtrain_job.cli.pods:data_worker", "Load batches for the job's ranks.", True),
    LazyCommand("launcher", "ringtrain_job.cli.pods:launcher", "Bring the job's workers together.", True),
    LazyCommand("logs", "ringtrain_job.cli.logs:logs", "Print what the ranks of a run wrote."),
    LazyCommand("remote-agent", "ringtrain_job.cli.remote_agent:remote_agent", "Run an agent on another host.", True),
    LazyCommand("run", "ringtrain_job.cli.run:run", "Run COMMAND as N ranks, with one merged log."),
    LazyCommand("timeline", "ringtrain_job.cli.timeline:timeline", "Print where the time of a step goes."),
)
