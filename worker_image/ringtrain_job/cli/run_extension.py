"""Options that plugins add to `ringtrain run`, and the plan of a run that follows from all options.

A plugin registers a `RunExtension` by an entry point of the group `ringtrain.run.options`.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

import click

from ringtrain.shared.plugins import entry_points_of, missing_plugin_text
from ringtrain_job.cli.elastic import ElasticCommandOptions, elastic_run
from ringtrain_job.logs.layout import AttemptFiles

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class RunRequest:
    """Options as given on the command line. `ranks`: None without `-np`. `given`: values of extensions' options by
    name."""

    ranks: int | None
    elastic: ElasticCommandOptions
    given: Mapping[str, Any] = field(default_factory=dict)


# Runs a command (variables of launcher and agents, command, whether to log more) and returns the exit code.
RunStart = Callable[[Mapping[str, str], Sequence[str], bool], int]


def _link_nothing(_: AttemptFiles) -> None:
    """Create no links to the files of the run."""


@dataclass(frozen=True)
class RunPlan:
    """Plan of a run of initially `ranks` ranks and at most `slots` at a time.

    `variables`: environment variables of launcher and agents. `words`: additional arguments of the launcher. `notes`:
    lines to print before the start. `hosts`: number of hosts. `others`: names of those that are not this machine.
    `is_here`: whether this machine runs ranks. `link`: creates links to the files of the run. `start`: runs the
    command if other hosts take part; None if it runs on this machine only.
    """

    ranks: int
    slots: int
    variables: Mapping[str, str] = field(default_factory=dict)
    words: Sequence[str] = ()
    notes: Sequence[str] = ()
    hosts: int = 1
    others: Sequence[str] = ()
    is_here: bool = True
    link: Callable[[AttemptFiles], None] = _link_nothing
    start: RunStart | None = None


class RunExtension(Protocol):
    """Options of `ringtrain run` that a plugin adds, with their effect.

    `help`: paragraphs at the end of the command's help. `sections`: longest flags of options by the title of their
    section in the help. `ignored`: a title, and flags of accepted options by the reason why they have no effect.
    `hints`: what to write instead, by option of another launcher.
    """

    options: Sequence[click.Option]
    help: str
    sections: Mapping[str, Sequence[str]]
    ignored: tuple[str, Mapping[str, Sequence[str]]]
    hints: Mapping[str, str]

    def plan(self, request: RunRequest) -> RunPlan | None:
        """Return the plan of a run with these options; None to leave it to others. Raises click.UsageError."""


@functools.cache
def run_extensions() -> tuple[RunExtension, ...]:
    """Return the extensions of installed plugins, sorted by the names of their entry points."""
    return tuple(point.load() for point in entry_points_of("ringtrain.run.options"))


def missing_option_text(option: str) -> str:
    """Return how to install the plugin that has `option`; empty if no plugin has it."""
    name = option.lstrip("-")
    packages = [point.value for point in entry_points_of("ringtrain.run.options.of_plugins") if point.name == name]
    return " ".join(missing_plugin_text(option, package) for package in packages)


def extension_options(command: F) -> F:
    """Add the options of all extensions to `command`, which gets their values by name as the argument `given`."""
    options = [option for extension in run_extensions() for option in extension.options]

    @functools.wraps(command)
    def gathered(**values: Any) -> Any:
        given = {option.name: values.pop(option.name) for option in options if option.expose_value}
        return command(given=given, **values)

    params = gathered.__dict__.setdefault("__click_params__", [])
    params.extend(reversed(options))  # click reverses the list
    return cast(F, gathered)


def run_plan(request: RunRequest) -> RunPlan:
    """Return the plan of the first extension that has one, otherwise a plan for this machine. Raises
    click.UsageError."""
    for extension in run_extensions():
        if (plan := extension.plan(request)) is not None:
            return plan
    ranks = require_ranks(request.ranks)
    if not request.elastic.given:
        return RunPlan(ranks, ranks)
    elastic = elastic_run(ranks, request.elastic)
    return RunPlan(ranks, elastic.slots, elastic.variables)


def require_ranks(ranks: int | None) -> int:
    """Return `ranks`. Raises click.UsageError if it is None."""
    if ranks is None:
        raise click.UsageError("Missing option '-np': the number of ranks to start, such as -np 2")
    return ranks
