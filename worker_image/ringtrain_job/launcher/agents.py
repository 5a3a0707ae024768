"""Agents of an attempt, and the states of their ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ringtrain_job.control.model import Order, RankPhase, RankState, Refusal, Registration
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.members import SlotView
from ringtrain_job.launcher.verdict import RankExit, WorkerView


@dataclass
class RegisteredAgent:
    """The launcher's record of one registered agent.

    `streams`: number of open order streams. `attached`: whether the agent has opened an order stream since its last
    registration. `contact_at`: time of the agent's last call. `order`: number of the newest order that the agent had
    received when it sent its state. `not_for_it`: if the agent replaced a lost agent, the newest order at that time,
    which was meant for the processes of the lost agent. `exits`: for each rank, the exit of its newest process; after a
    failure, the exit of the failed process until a process with another number (`life`) ends. `cached_view`: view of
    this agent while it is in contact. `slots_seen`: cached views of the agent's slots, and the inputs they were
    computed from.
    """

    registration: Registration
    contact_at: float
    streams: int = 0
    attached: bool = False
    drained: bool = False
    leaving: str = ""
    leaving_since: float = 0.0
    order: int = 0
    not_for_it: Order | None = None
    states: dict[int, RankState] = field(default_factory=dict)
    exits: dict[int, RankExit] = field(default_factory=dict)
    cached_view: WorkerView | None = None
    slots_seen: tuple[object, dict[int, SlotView]] | None = None


@dataclass(frozen=True)
class RankViews:
    """States and exits of all ranks at one time."""

    ranks: tuple[RankState, ...]
    exits: tuple[RankExit, ...]
    placed: Mapping[int, int]

    @staticmethod
    def of(size: int) -> "RankViews":
        return RankViews(tuple(waiting_rank_state(rank) for rank in range(size)), (), {})


def exit_key(state: RankState) -> tuple[RankPhase, int]:
    """Return values that differ between two successive processes of a rank."""
    return state.phase, state.exit_order


def state_supersedes(state: RankState, known: RankState) -> bool:
    """Return whether `state`, the state of an ended process, replaces the state `known` of an earlier process.

    A failure is replaced only by the state of a process with another number (`life`).
    """
    return known.life != state.life or (known.phase is not RankPhase.FAILED and known.exit_order != state.exit_order)


def waiting_rank_state(rank: int) -> RankState:
    """Return the state of a rank that has not been started."""
    return RankState(rank, RankPhase.WAITING)


def relevant_state(agent: RegisteredAgent) -> tuple[object, ...]:
    ranks = [
        (rank, state.phase, state.life, state.formation, state.parked, state.joined)
        for rank, state in agent.states.items()
    ]
    return ranks, agent.drained, agent.leaving, agent.order


def registration_mismatch(config: LauncherConfig, registration: Registration) -> Refusal | None:
    """Return the refusal of an agent with another job, attempt or number of slots, or with a wrong index.

    Return None if all of them are right.
    """
    compared = (
        ("job uid", registration.job_uid, config.job.uid),
        ("attempt", registration.attempt, config.job.attempt),
        ("slots per worker", registration.slots, config.slots),
    )
    for what, theirs, ours in compared:
        if theirs != ours:
            return Refusal(f"{what} is {theirs} at the worker, but {ours} at the launcher", misconfigured=True)
    if not 0 <= registration.worker_index < config.workers:
        reason = f"worker index is {registration.worker_index}; expected 0 to {config.workers - 1}"
        return Refusal(reason, misconfigured=True)
    return None
