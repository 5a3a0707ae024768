"""Interface for plugins whose own program, not the agent, starts the ranks of a worker.

The entry point in `ringtrain.agent.starters` with the name of the job's backend is a function that takes a
`StarterContext` and returns a `RankStarter`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ringtrain.shared.plugins import entry_points_of
from ringtrain.shared.processes import RankProcess
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.control.model import Form, Prepare, RankState, World
from ringtrain_job.control.settings import plugin_missing

STARTERS: Final = "ringtrain.agent.starters"


class RankStarter(Protocol):
    """Interface of a plugin whose program starts this worker's ranks instead of the agent. Called on the main thread.

    `threads`: number of the agent's server threads that its services may occupy at the same time. `order`: number of
    the newest order of an elastic job that has been followed.
    """

    threads: int
    order: int

    def register(self, server: Any) -> None:
        """Add gRPC services to the agent's server. Only the launcher may call them."""

    def begin(self, world: World) -> None:
        """Permit ranks of `world` to start. Called when all agents have registered."""

    def follow(self, order: Prepare | Form) -> None:
        """Store `order`, the launcher's newest order in an elastic job. `act` executes it."""

    def act(self) -> None:
        """Execute due actions of the newest order. Called about twice a second."""

    def note_exit(self, pid: int, status: int) -> None:
        """Record that a child of the agent that is not a rank has ended with wait status `status`."""

    @property
    def running(self) -> bool:
        """Whether any child process of the starter is alive."""

    def close(self) -> None:
        """Stop accepting ranks, and delete all files that were created."""


class RankSink(Protocol):
    """Methods of the agent that a starter of ranks calls, on the main thread.

    `stopping`: whether no further rank may start. `saving`: whether ranks were ordered to stop, and may use the grace
    period of the pod to save.
    """

    stopping: bool
    saving: bool

    def fitted(self, variables: Mapping[str, str], world: World) -> dict[str, str]:
        """Return `variables`, with values that are too long for the environment moved to a file."""

    def collect(self, process: RankProcess) -> None:
        """Begin to collect the output of a rank that is about to start."""

    def rank_started(self, process: RankProcess, life: int, generation: int) -> None:
        """Record a running rank.

        `life`, `generation`: in an elastic job, the number of the process in its slot, and the generation that it
        joins.
        """

    def ranks_joined(self) -> None:
        """Record that all ranks have joined the world. Call it when a rank has reported that."""

    def stop_ranks(self, reason: str, ranks: Collection[int] | None = None) -> None:
        """Request the end of `ranks` (None: all ranks). `reason`: text for the states of these ranks."""

    def rank_ended(self, rank: int, code: int, problem: RankState | None) -> None:
        """Record that a rank ended with `code`, negative for a signal.

        `problem`: state to report although `code` is 0.
        """


@dataclass(frozen=True)
class StarterContext:
    """Inputs of a starter. `environment`: the pod's variables. `post`: schedules a function on the main thread."""

    config: AgentConfig
    environment: Mapping[str, str]
    ranks: RankSink
    post: Callable[[Callable[[], None]], None]


def open_starter(context: StarterContext) -> RankStarter | None:
    """Return a new starter for the job's backend; None if the agent starts the ranks. Raises ConfigurationError if its
    plugin is missing."""
    if context.config.agents_start_ranks:
        return None
    for point in entry_points_of(STARTERS):
        if point.name == context.config.backend:
            starter: RankStarter = point.load()(context)
            return starter
    raise plugin_missing(context.config.backend)
