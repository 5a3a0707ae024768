"""Data that agent and launcher exchange: states, registrations, worlds, verdicts, orders."""

from dataclasses import dataclass
from enum import StrEnum

from ringtrain.errors import ConfigurationError


class RankPhase(StrEnum):
    """Phase of a rank, with the values used in `/status`."""

    WAITING = "Waiting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"


ENDED = frozenset({RankPhase.SUCCEEDED, RankPhase.FAILED, RankPhase.STOPPED})


class Outcome(StrEnum):
    """Outcome of an attempt, with the values used in the termination message."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"


class Reason(StrEnum):
    """Reason for an attempt's failure, with the values used in the termination message."""

    RANK_FAILED = "RankFailed"
    AGENT_LOST = "AgentLost"
    NOT_ASSEMBLED = "NotAssembled"
    WORLD_INCOMPLETE = "WorldIncomplete"
    NOT_FINITE = "NotFinite"
    BAD_CONFIGURATION = "BadConfiguration"
    CANNOT_START = "CannotStart"
    LAUNCHER_FAILED = "LauncherFailed"
    INTERNAL_ERROR = "InternalError"
    MPIRUN_NOT_FOUND = "MpirunNotFound"
    SLOTS_MISMATCH = "SlotsMismatch"
    WRONG_IMPLEMENTATION = "WrongImplementation"
    NO_MPI_INIT = "NoMpiInit"


class CannotRun(ConfigurationError):
    """Error: the job cannot run as it is declared. `reason`: the reason's name in docs/contract.md."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def reason_of(error: ConfigurationError) -> Reason:
    """Return the reason of an attempt's failure by `error`."""
    return error.reason if isinstance(error, CannotRun) else Reason.BAD_CONFIGURATION


@dataclass(frozen=True)
class JobIdentity:
    """Job and attempt to which a pod belongs."""

    name: str
    namespace: str
    uid: str
    attempt: int


@dataclass(frozen=True)
class RankState:
    """State of one rank, or in an elastic job of one slot (place of a rank), reported by its agent.

    `exit_code`: 0–255; 128 + n if signal n ended the rank. `exit_order`: position among the exits that this agent saw,
    from 1. `exited_ago_s`: age of the exit when the state was sent. `log_tail`: last lines of the log, for failed
    ranks. `reason`, `message`: cause of a failure that the exit code does not show.

    In an elastic job `rank` is the slot. `life`: number of the slot's newest process, from 1; 0: none was started.
    `formation`: newest generation that the process was ordered to join. `joined`: whether the process has completed the
    rendezvous of that generation; in a job without generations, whether its pod has used an address of the world.
    `parked`: whether the process has left its world, or had none yet, and waits for another. `committed`: last
    committed step. `lost_steps`: number of steps that were begun and discarded. `unshared`: whether the process has
    left its world without sending state that perhaps no other process has. `adopted`: generation since which the
    process has the whole state, as reported when it left its last world.
    """

    rank: int
    phase: RankPhase
    exit_code: int | None = None
    signal: str = ""
    exit_order: int = 0
    exited_ago_s: float = 0.0
    log_tail: tuple[str, ...] = ()
    reason: Reason | None = None
    message: str = ""
    life: int = 0
    formation: int = 0
    parked: bool = False
    committed: int = 0
    lost_steps: int = 0
    joined: bool = False
    unshared: bool = False
    adopted: int = 0


@dataclass(frozen=True)
class AgentState:
    """State of a worker, which its agent sends with every heartbeat.

    `drained`: whether all ranks have ended, and their output is in the launcher's files. `leaving`: signal that asked
    the pod to stop. `order`: number of the newest `Prepare` or `Form` that the agent had received when it collected
    `ranks`, which are therefore newer than that order.
    """

    ranks: tuple[RankState, ...]
    drained: bool = False
    leaving: str = ""
    order: int = 0


@dataclass(frozen=True)
class Registration:
    """Data that an agent sends to register. `ranks`: states of the ranks that it has already started; otherwise empty.

    `incarnation`: in an elastic job, the number of the pod among all pods of its name; 0 if unknown. `pod_uid`: UID of
    the pod in the API; empty if unknown.
    """

    job_uid: str
    attempt: int
    worker_index: int
    slots: int
    instance: str
    pod: str
    node: str
    address: str
    agent_port: int
    ring_ports: tuple[int, ...]
    tf_ports: tuple[int, ...]
    master_port: int
    ranks: tuple[RankState, ...] = ()
    order: int = 0
    incarnation: int = 0
    pod_uid: str = ""


@dataclass(frozen=True)
class SlotHistory:
    """Last numbers that the launcher has stored for a slot (place of a rank): of its process (`life`), of a log record
    and of a report. A new agent of the worker continues each of them."""

    slot: int
    life: int
    log_records: int
    report_records: int


@dataclass(frozen=True)
class Member:
    """One process of a slot in an elastic job. `life`: number of the process in its slot, from 1."""

    slot: int
    life: int


# Upper bound of generation numbers: attempt and generation form one number of 31 bits for the handshake of ranks.
GENERATIONS = 1_000_000
_ATTEMPTS = 2**31 // GENERATIONS


@dataclass(frozen=True)
class World:
    """Description of the world for its ranks. Addresses are `host:port`, by rank.

    `formation`: number of the generation, or 0 for a world that does not change. `members`: processes of a generation,
    by rank. `committed`: last step that the attempt has committed, even if no member has it. `sites`: site name of each
    rank; empty if all ranks are at one site.
    """

    attempt: int
    ring_addresses: tuple[str, ...]
    tf_addresses: tuple[str, ...]
    master_address: str
    master_port: int
    formation: int = 0
    members: tuple[Member, ...] = ()
    committed: int = 0
    sites: tuple[str, ...] = ()

    @property
    def generation(self) -> int:
        """Number that differs between all worlds of the job, over all attempts. Ranks refuse peers with another
        number."""
        return self.attempt % _ATTEMPTS * GENERATIONS + self.formation if self.formation else self.attempt


@dataclass(frozen=True)
class Failure:
    """First cause of an attempt's failure. `rank` and `exit_code` are None if no rank caused it.

    `pod_uid`: distinguishes `pod` from other pods of its name; empty if unknown.
    """

    reason: Reason
    message: str
    rank: int | None = None
    pod: str = ""
    node: str = ""
    exit_code: int | None = None
    signal: str = ""
    log_tail: tuple[str, ...] = ()
    pod_uid: str = ""


@dataclass(frozen=True)
class Verdict:
    """Outcome of an attempt, with the launcher's exit code. `warning`: message about a successful attempt."""

    outcome: Outcome
    exit_code: int
    ranks_succeeded: int = 0
    failure: Failure | None = None
    warning: str = ""


@dataclass(frozen=True)
class Start:
    """Order to agents: all agents have registered; start the ranks of `world`."""

    world: World


@dataclass(frozen=True)
class Stop:
    """Order to agents: the attempt has ended; stop the ranks, send their last lines, wait for Release."""

    verdict: Verdict


@dataclass(frozen=True)
class Release:
    """Order to agents: exit."""

    verdict: Verdict


@dataclass(frozen=True)
class Prepare:
    """Order to agents of an elastic job: prepare generation `formation`, so that ranks leave their world.

    `slots`: slots that should have a live process; processes in other slots are ordered to leave. If a process in
    `slots` has ended, its agent starts the next one once the launcher knows of the end. `urgent`: whether a member is
    lost. If so, processes leave the current generation now, and a process that does not leave in time is killed;
    otherwise they leave at their next commit. `restart`: whether every process is stopped, and none is started before
    `Form`. `number`: number of this order; no two orders to prepare or form have the same number.
    """

    formation: int
    slots: tuple[int, ...]
    urgent: bool = False
    restart: bool = False
    number: int = 0


@dataclass(frozen=True)
class Form:
    """Order to agents of an elastic job: the members of a generation are chosen; begin it.

    `slots`, `number`: see `Prepare`. A process in `slots` that is not a member waits for the next generation. This
    order does not restart a member whose process has ended, unless the member's `life` is the number of the next
    process (`Prepare.restart`).
    """

    world: World
    slots: tuple[int, ...]
    number: int = 0


Order = Start | Prepare | Form | Stop | Release


@dataclass(frozen=True)
class Refusal:
    """Answer to an agent that may not register. `misconfigured`: whether no retry can succeed."""

    reason: str
    misconfigured: bool = False
