"""Starters of a worker's ranks for jobs whose agents do not start them, found by entry points.

The entry point in `ringtrain.agent.starters` with the name of the job's backend is a function that takes a
`StarterContext` and returns a `RankStarter`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final, Protocol

from ringtrain.shared.processes import RankProcess
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.control.model import Form, Prepare, RankState, World
from ringtrain_job.control.settings import plugin_missing

STARTERS: Final = "ringtrain.agent.starters"


class RankStarter(Protocol):
    """Interface to a program that starts this worker's ranks. Called on the agent's main thread.

    `threads`: number of the agent's server threads that its services may occupy at the same time. `order`: number of
    the newest order of an elastic job that has been followed.
    """

    threads: int
    order: int

    def register(self, server: Any) -> None:
        """Add services to the agent's gRPC server, which the launcher alone may call."""

    def begin(self, world: World) -> None:
        """Permit ranks of `world` to start: all agents have registered."""

    def follow(self, order: Prepare | Form) -> None:
        """Follow `order`, the newest of an elastic job, from now on."""

    def act(self) -> None:
        """Execute due actions of the newest order. Called about twice a second."""

    def note_exit(self, pid: int, status: int) -> None:
        """Record the end, with wait status `status`, of a child of the agent that is not a rank."""

    @property
    def running(self) -> bool:
        """Whether a child that was started for the ranks is alive."""

    def close(self) -> None:
        """Accept no more ranks, and remove created files."""


class RankSink(Protocol):
    """Methods of the agent that a starter of ranks calls, on the agent's main thread.

    `stopping`: no further rank may start. `saving`: ranks were ordered to stop, and may use the grace period of the pod
    to save.
    """

    stopping: bool
    saving: bool

    def fitted(self, variables: Mapping[str, str], world: World) -> dict[str, str]:
        """Return `variables` of a rank in `world`, with a file in place of those that are too long."""

    def collect(self, process: RankProcess) -> None:
        """Collect the output of a rank, whose `pid` is not known yet."""

    def rank_started(self, process: RankProcess, life: int, formation: int) -> None:
        """Record a running rank; `life`, `formation`: number of the process in its slot, and generation, in an
        elastic job."""

    def ranks_joined(self) -> None:
        """Record that all ranks have joined the world, because one has."""

    def stop_ranks(self, reason: str, ranks: Collection[int] | None = None) -> None:
        """Request the end of `ranks`, or all."""

    def rank_ended(self, rank: int, code: int, problem: RankState | None) -> None:
        """Record the end of a rank with `code` (negative: a signal). `problem`: state to report instead."""


@dataclass(frozen=True)
class StarterContext:
    """Inputs of a starter. `environment`: the pod's. `post`: schedules a function on the main thread."""

    config: AgentConfig
    environment: Mapping[str, str]
    ranks: RankSink
    post: Callable[[Callable[[], None]], None]


def open_starter(context: StarterContext) -> RankStarter | None:
    """Open the starter of the job's backend; None if the agent starts the ranks. Raises ConfigurationError."""
    if context.config.agents_start_ranks:
        return None
    for point in entry_points(group=STARTERS, name=context.config.backend):
        starter: RankStarter = point.load()(context)
        return starter
    raise plugin_missing(context.config.backend)
