"""Starters of a worker's ranks where its agent does not start them, found by entry points.

`ringtrain.agent.starters`, by the name of the job's backend: a function that takes a `StarterContext` and returns a
`RankStarter`. The agent names none.
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
    """Let another program start this worker's ranks. Called in the agent's main thread.

    `threads`: of the agent's server that its services may hold at the same time. `order`: number of the newest order of
    an elastic job that has been followed.
    """

    threads: int
    order: int

    def register(self, server: Any) -> None:
        """Add services to the agent's gRPC server, which the launcher alone may call."""

    def begin(self, world: World) -> None:
        """Ranks of `world` may start: all agents have registered."""

    def follow(self, order: Prepare | Form) -> None:
        """Carry out `order`, the newest of an elastic job, from now on."""

    def act(self) -> None:
        """Do what the newest order makes due. Called about twice a second."""

    def note_exit(self, pid: int, status: int) -> None:
        """A child of the agent that is no rank has ended, with this wait status."""

    @property
    def running(self) -> bool:
        """Whether a child lives that was started for the ranks."""

    def close(self) -> None:
        """Take no more ranks, and remove what was made."""


class RankSink(Protocol):
    """The agent as a starter calls it, in the agent's main thread. `stopping`: no rank is to begin any more;
    `saving`: ranks were asked to stop, and have their pods' grace period."""

    stopping: bool
    saving: bool

    def fitted(self, variables: Mapping[str, str], world: World) -> dict[str, str]:
        """`variables` of a rank in `world`, with a file in place of those that are too long."""

    def collect(self, process: RankProcess) -> None:
        """Read what a rank writes; its `pid` is not known yet."""

    def rank_started(self, process: RankProcess, life: int, formation: int) -> None:
        """The rank runs; `life`, `formation`: in an elastic job."""

    def ranks_joined(self) -> None:
        """A rank was in the job's world, and so all were."""

    def stop_ranks(self, reason: str, ranks: Collection[int] | None = None) -> None:
        """Ask `ranks`, or all, to end."""

    def rank_ended(self, rank: int, code: int, problem: RankState | None) -> None:
        """The rank ended with `code` (negative: a signal); `problem`: what it is to be reported as instead."""


@dataclass(frozen=True)
class StarterContext:
    """`environment`: the pod's. `post`: hands a function to the main thread, which calls it soon."""

    config: AgentConfig
    environment: Mapping[str, str]
    ranks: RankSink
    post: Callable[[Callable[[], None]], None]


def open_starter(context: StarterContext) -> RankStarter | None:
    """Open the starter of the job's backend; None where the agent starts the ranks. Raises ConfigurationError."""
    if context.config.agents_start_ranks:
        return None
    for point in entry_points(group=STARTERS, name=context.config.backend):
        starter: RankStarter = point.load()(context)
        return starter
    raise plugin_missing(context.config.backend)
