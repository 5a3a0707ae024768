"""Table of the commands of `dtj`.

A distribution adds commands by an entry point of the group `dtj.commands` that names a table like this one. `dtj
--help` reads the tables only; a command's module is imported when the command runs.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class LazyCommand:
    """One subcommand of `dtj`, imported only when it is called.

    `load`: `module:name` of the click command. `help`: help text in the list of commands, at most 60 characters.
    `meant`: names of the command in other tools. `hidden`: whether the list omits the command.
    """

    name: str
    load: str
    help: str
    meant: tuple[str, ...] = ()
    hidden: bool = False


_CLI = "ringtrain_client.cli"
COMMANDS = (
    LazyCommand("completion", f"{_CLI}.main:completion", "Print the completion script of a shell."),
    LazyCommand("delete", f"{_CLI}.changing:delete", "Delete jobs and their pods.", ("rm",)),
    LazyCommand("list", f"{_CLI}.listing:list_jobs", "List jobs with their state and progress.", ("ls", "ps", "get")),
    LazyCommand("local", f"{_CLI}.local:local", "Run a job on this machine, its pods as processes.", ("run",)),
    LazyCommand("logs", f"{_CLI}.logs:logs", "Print the output of a job's ranks."),
    LazyCommand("render", f"{_CLI}.render:render", "Print the objects that the operator creates for a job."),
    LazyCommand("resume", f"{_CLI}.changing:resume", "Start suspended jobs again.", ("start",)),
    LazyCommand("submit", f"{_CLI}.submit:submit", "Check jobs and create them.", ("create", "apply")),
    LazyCommand("suspend", f"{_CLI}.changing:suspend", "Delete jobs' pods and create none until resumed.", ("stop",)),
    LazyCommand("templates", f"{_CLI}.templates:templates", "List the templates that jobs can name."),
    LazyCommand("tensorboard", f"{_CLI}.tensorboard:tensorboard", "Show a job's metrics in TensorBoard."),
    LazyCommand("ui", f"{_CLI}.ui:ui", "Show a job's page in a browser."),
    LazyCommand("validate", f"{_CLI}.validate:validate", "Check jobs and name each problem.", ("check",)),
    LazyCommand("watch", f"{_CLI}.watch:watch", "Show a job's state and progress until it ends.", ("wait", "top")),
    LazyCommand("why", f"{_CLI}.listing:why", "Print the causes of a job's state.", ("describe", "status", "events")),
)
