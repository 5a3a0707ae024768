"""The commands of `dtj`. A distribution adds its own by an entry point of the group `dtj.commands`, which names a table
like this one: `dtj --help` reads tables alone, and a command's module is loaded when it runs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LazyCommand:
    """`load`: module and click command, as `module:name`. `help`: its line in the list, at most 60 characters. `meant`:
    words that people of other tools would try for it. `hidden`: it is not in the list."""

    name: str
    load: str
    help: str
    meant: tuple[str, ...] = ()
    hidden: bool = False


_CLI = "ringtrain_client.cli"
COMMANDS = (
    LazyCommand("completion", f"{_CLI}.main:completion", "Print the completion script of a shell."),
    LazyCommand("delete", f"{_CLI}.changing:delete", "Delete jobs and their pods.", ("rm",)),
    LazyCommand("describe", f"{_CLI}.listing:why", "Say why a job is in the state it is in."),
    LazyCommand("list", f"{_CLI}.listing:list_jobs", "List jobs with their state and progress.", ("ls", "ps", "get")),
    LazyCommand("local", f"{_CLI}.local:local", "Run a job on this machine, its pods as processes.", ("run",)),
    LazyCommand("logs", f"{_CLI}.logs:logs", "Print what a job's ranks wrote."),
    LazyCommand("render", f"{_CLI}.render:render", "Print what the operator would create for a job."),
    LazyCommand("resume", f"{_CLI}.changing:resume", "Let suspended jobs run again.", ("start",)),
    LazyCommand("submit", f"{_CLI}.submit:submit", "Check jobs and create them.", ("create", "apply")),
    LazyCommand("suspend", f"{_CLI}.changing:suspend", "Delete jobs' pods until they are resumed.", ("stop",)),
    LazyCommand("templates", f"{_CLI}.templates:templates", "List the templates that jobs can name."),
    LazyCommand("tensorboard", f"{_CLI}.tensorboard:tensorboard", "Show a job's metrics in TensorBoard."),
    LazyCommand("ui", f"{_CLI}.ui:ui", "Show a job's page in a browser."),
    LazyCommand("validate", f"{_CLI}.validate:validate", "Check jobs and name each problem.", ("check",)),
    LazyCommand("why", f"{_CLI}.listing:why", "Say why a job is in the state it is in.", ("status", "events")),
)
