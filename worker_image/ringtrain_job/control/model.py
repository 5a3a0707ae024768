"""Values that travel between agent and launcher."""

from dataclasses import dataclass
from enum import StrEnum

from ringtrain.errors import ConfigurationError


class RankPhase(StrEnum):
    """Where a rank is in its life; the words of `/status`."""

    WAITING = "Waiting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"


ENDED = frozenset({RankPhase.SUCCEEDED, RankPhase.FAILED, RankPhase.STOPPED})


class Outcome(StrEnum):
    """How an attempt ended; the words of the termination message."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"


class Reason(StrEnum):
    """Why an attempt failed; the words of the termination message."""

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
    """A job that cannot run as it is declared. `reason`: the word of docs/contract.md for it."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class JobIdentity:
    """Which attempt of which job a pod belongs to."""

    name: str
    namespace: str
    uid: str
    attempt: int


@dataclass(frozen=True)
class RankState:
    """One rank as its agent sees it.

    `exit_code`: 0–255, 128 + n when signal n ended the rank. `exit_order`: position among the exits that this
    agent saw, from 1. `exited_ago_s`: age of the exit when the state was sent. `log_tail`: for failed ranks.
    `reason`, `message`: what is wrong with a rank that failed for another reason than its exit code.

    In an elastic job `rank` is the slot. `life`: number of the process in it, from 1; 0: none was started.
    `formation`: that the process was told to be in last, from the moment on at which it was told. `joined`: it has
    met the others there; of a job without formations, an address of the world was used in its pod. `parked`: it
    has left its world, or had none yet, and waits for another. `committed`, `lost_steps`: its last committed step,
    and steps that were begun and given up. `unshared`: it has left its world without giving to others what it
    alone may hold. `adopted`: the formation since which it has all of the state, as it said when it left its last.
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
    """What the launcher is told at every heartbeat.

    `drained`: all ranks have ended, and what they wrote is in the launcher's files. `leaving`: the signal that
    asked the pod to stop. `order`: number of the newest `Prepare` or `Form` that the agent had got when it looked
    at its ranks: what it says of them is younger than that order.
    """

    ranks: tuple[RankState, ...]
    drained: bool = False
    leaving: str = ""
    order: int = 0


@dataclass(frozen=True)
class Registration:
    """What an agent brings to the barrier. `ranks` is empty unless the agent has started them already.

    `incarnation`: which pod of its name it is, in an elastic job; 0: not known. `pod_uid`: the pod's in the API;
    empty: not known.
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
    """What an earlier agent has left of a slot in this attempt: its highest life, and the sequences of its last
    log record and its last report record. An agent that takes its place counts on from these."""

    slot: int
    life: int
    log_records: int
    report_records: int


@dataclass(frozen=True)
class Member:
    """A process of a slot. `life`: its number in the slot, from 1."""

    slot: int
    life: int


# A formation is less than this: attempt and formation make one number of 31 bits for the handshake between ranks.
FORMATIONS = 1_000_000
_ATTEMPTS = 2**31 // FORMATIONS


@dataclass(frozen=True)
class World:
    """What every rank must know of all the others; addresses are `host:port` by rank.

    `formation`: 0 for a world that does not change; else `members` are its processes, by rank. `committed`: the
    last step that the attempt has committed, whether or not one of them has it. `sites`: the name of each
    rank's; empty: all are in one.
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
        """By this number ranks tell their world from any other of the job."""
        return self.attempt % _ATTEMPTS * FORMATIONS + self.formation if self.formation else self.attempt


@dataclass(frozen=True)
class Failure:
    """The first cause of a failed attempt. `rank` and `exit_code` are None where no rank is to be named.

    `pod_uid`: tells `pod` from another one of its name; empty: not known.
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
    """How the attempt ended, and the exit code of the launcher that goes with it. `warning`: what is to be said of
    a success."""

    outcome: Outcome
    exit_code: int
    ranks_succeeded: int = 0
    failure: Failure | None = None
    warning: str = ""


@dataclass(frozen=True)
class Start:
    """Order: the gang is complete, start the ranks."""

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
    """Order: formation `formation` is to be made.

    `slots`: those that shall have a living process; processes in other slots are told to leave. `urgent`: a member
    is lost, leave the former formation now, and a process that has not left it in time is killed; otherwise it
    leaves at its next commit. `restart`: every process is stopped, and none is started before `Form`.

    `number`: orders to prepare and to form are numbered, and a number never comes twice. A process in `slots` that
    had ended when an order of a lower number was the newest is started anew: the launcher knows of its end.
    """

    formation: int
    slots: tuple[int, ...]
    urgent: bool = False
    restart: bool = False
    number: int = 0


@dataclass(frozen=True)
class Form:
    """Order: the members of a formation are chosen.

    `slots`, `number`: as in `Prepare`; a process in one of `slots` that is no member waits for the next formation.
    A member whose process has ended is not started anew by this order, unless its life is the one after that
    (`Prepare.restart`).
    """

    world: World
    slots: tuple[int, ...]
    number: int = 0


Order = Start | Prepare | Form | Stop | Release


@dataclass(frozen=True)
class Refusal:
    """Why an agent may not join. `misconfigured`: trying again cannot help."""

    reason: str
    misconfigured: bool = False
