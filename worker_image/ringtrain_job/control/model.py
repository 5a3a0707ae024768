"""Values exchanged between agent and launcher."""

from dataclasses import dataclass
from enum import StrEnum

from ringtrain.errors import ConfigurationError


class RankPhase(StrEnum):
    """Phase of a rank; the words of `/status`."""

    WAITING = "Waiting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"


ENDED = frozenset({RankPhase.SUCCEEDED, RankPhase.FAILED, RankPhase.STOPPED})


class Outcome(StrEnum):
    """Outcome of an attempt; the words of the termination message."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"


class Reason(StrEnum):
    """Reason for the failure of an attempt; the words of the termination message."""

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
    """A job that cannot run as it is declared. `reason`: name of the reason in docs/contract.md."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class JobIdentity:
    """Job and attempt of a pod."""

    name: str
    namespace: str
    uid: str
    attempt: int


@dataclass(frozen=True)
class RankState:
    """One rank as its agent sees it.

    `exit_code`: 0–255, 128 + n if signal n ended the rank. `exit_order`: position among the exits that this agent saw,
    from 1. `exited_ago_s`: age of the exit when the state was sent. `log_tail`: last lines of the log, for failed
    ranks. `reason`, `message`: cause of a failure that the exit code does not show.

    In an elastic job `rank` is the slot. `life`: number of its process, from 1; 0: none was started. `formation`:
    newest generation that the process was ordered to join, from that order on. `joined`: it has completed the
    rendezvous of that generation; in a job without generations, its pod has used an address of the world. `parked`: it
    has left its world, or had none yet, and waits for another. `committed`, `lost_steps`: the last committed step, and
    the number of steps that were begun and discarded. `unshared`: it has left its world without sending state that it
    may be the only one to have. `adopted`: generation since which it has the whole state, as reported when it left its
    last one.
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
    """State that an agent sends with every heartbeat.

    `drained`: all ranks have ended, and their output is in the launcher's files. `leaving`: signal that asked the pod
    to stop. `order`: number of the newest `Prepare` or `Form` that the agent had received when it collected `ranks`,
    which are therefore newer than that order.
    """

    ranks: tuple[RankState, ...]
    drained: bool = False
    leaving: str = ""
    order: int = 0


@dataclass(frozen=True)
class Registration:
    """Data with which an agent registers. `ranks` is empty unless the agent has started them already.

    `incarnation`: number of the pod among those of its name, in an elastic job; 0: unknown. `pod_uid`: UID of the pod
    in the API; empty: unknown.
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
    """Stored state of a slot that an earlier agent of this attempt left: its highest life, and the numbers of its last
    log record and last report record. The agent that replaces it continues counting from these."""

    slot: int
    life: int
    log_records: int
    report_records: int


@dataclass(frozen=True)
class Member:
    """A process of a slot. `life`: number of the process in the slot, from 1."""

    slot: int
    life: int


# Upper bound of generation numbers: attempt and generation form one number of 31 bits for the handshake of ranks.
FORMATIONS = 1_000_000
_ATTEMPTS = 2**31 // FORMATIONS


@dataclass(frozen=True)
class World:
    """Data about the whole world that every rank needs; addresses are `host:port` by rank.

    `formation`: number of the generation, or 0 for a world that does not change. `members`: processes of a generation,
    by rank. `committed`: last step that the attempt has committed, even if no member has it. `sites`: site name of each
    rank; empty: all are at one site.
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
        """Number by which ranks distinguish their world from any other of the job."""
        return self.attempt % _ATTEMPTS * FORMATIONS + self.formation if self.formation else self.attempt


@dataclass(frozen=True)
class Failure:
    """First cause of a failed attempt. `rank` and `exit_code` are None if no rank caused it.

    `pod_uid`: distinguishes `pod` from other pods of its name; empty: unknown.
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
    """Outcome of the attempt, and the launcher's exit code. `warning`: warning about a success."""

    outcome: Outcome
    exit_code: int
    ranks_succeeded: int = 0
    failure: Failure | None = None
    warning: str = ""


@dataclass(frozen=True)
class Start:
    """Order: the gang is complete; start the ranks."""

    world: World


@dataclass(frozen=True)
class Stop:
    """Order: the attempt is over; stop the ranks, send the last lines, wait for the release."""

    verdict: Verdict


@dataclass(frozen=True)
class Release:
    """Order: exit."""

    verdict: Verdict


@dataclass(frozen=True)
class Prepare:
    """Order: prepare generation `formation`.

    `slots`: slots that should have a live process; processes in other slots are ordered to leave. `urgent`: a member is
    lost; processes leave the current generation now, and one that does not leave in time is killed. Otherwise they
    leave at their next commit. `restart`: every process is stopped, and none is started before `Form`.

    `number`: orders to prepare and to form are numbered, and no number is repeated. A process in `slots` that had ended
    while an order with a lower number was the newest is restarted: the launcher knows of its end.
    """

    formation: int
    slots: tuple[int, ...]
    urgent: bool = False
    restart: bool = False
    number: int = 0


@dataclass(frozen=True)
class Form:
    """Order: the members of a generation are chosen.

    `slots`, `number`: see `Prepare`. A process in `slots` that is not a member waits for the next generation. This
    order does not restart a member whose process has ended, unless its life is the one after that (`Prepare.restart`).
    """

    world: World
    slots: tuple[int, ...]
    number: int = 0


Order = Start | Prepare | Form | Stop | Release


@dataclass(frozen=True)
class Refusal:
    """Reason why an agent may not join. `misconfigured`: a retry cannot help."""

    reason: str
    misconfigured: bool = False
