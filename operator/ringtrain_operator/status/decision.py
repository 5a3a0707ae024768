"""What a policy is: what it may decide, what it notes in the ledger, and when it wants to be asked again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ..placement.line import PlacementContender
from .model import ConditionChange, Failure, JobStatus, LostPod
from .situation import Situation


@dataclass(frozen=True)
class Begin:
    """Start the first attempt, or the next one after a suspension or in a queue."""

    attempt: int
    reason: Literal["Started", "Resumed", "Admitted", "Dequeued", "Changed"]


@dataclass(frozen=True)
class Halt:
    """Delete the pods, give quota back, and wait to be resumed."""

    reason: Literal["Suspended", "Changed"] = "Suspended"
    message: str = "runPolicy.suspend is set; the pods are deleted"


@dataclass(frozen=True)
class Enqueue:
    """Delete the pods and wait in the queue. `disrupted`: the attempt ended by another's doing."""

    reason: str
    message: str
    disrupted: bool = False


@dataclass(frozen=True)
class Restart:
    """Give up this attempt and begin the next. `counted`: against backoffLimit. `delayed`: by the back-off.

    `lost`: a pod that went silent; what became of it decides later whether the restart counts.
    """

    reason: str
    message: str
    counted: bool = False
    delayed: bool = True
    failure: Failure | None = None
    lost: LostPod | None = None


@dataclass(frozen=True)
class Resize:
    """Go on with another number of workers, which join or leave within the attempt."""

    workers: int


@dataclass(frozen=True)
class Finish:
    """The job has ended, for good."""

    condition: Literal["Succeeded", "Failed"]
    reason: str
    message: str
    failure: Failure | None = None


@dataclass(frozen=True)
class GiveWay:
    """Delete the pods of a gang that is not placed whole, and wait without any.

    `place`: the job's among those that wait; None: it is `too_large` for the cluster, or a part of it is
    `refused`, in the API's or a kubelet's words, and it is in nobody's way.
    """

    place: PlacementContender | None
    too_large: bool = False
    refused: str = ""


@dataclass(frozen=True)
class Place:
    """Make the pods of a job that was queued. `since`: its place in the line."""

    since: datetime


Decision = Begin | Halt | Enqueue | Restart | Resize | GiveWay | Place | Finish


@dataclass(frozen=True)
class PolicyResult:
    """A policy's decision, if any, and when it wants to be asked again. `is_last`: no later one is asked."""

    decision: Decision | None = None
    requeue_at: datetime | None = None
    is_last: bool = False


NO_DECISION = PolicyResult()


@dataclass(frozen=True)
class Policy:
    """One policy. The first decision of any wins; then all make their notes, and say when to look again.

    `note`: the status with what the policy remembers; `decision`, the one that was made, is in its ledger already.
    `wakes`: given the new status, when to look again if nothing happens. `elastic`: only elastic jobs have it.
    """

    decide: Callable[[Situation], PolicyResult] | None = None
    note: Callable[[Situation, Decision | None], JobStatus] | None = None
    wakes: Callable[[Situation], tuple[datetime, ...]] | None = None
    elastic: bool = False


def condition_of(decision: Decision) -> ConditionChange | None:
    """The condition that a decision turns."""
    match decision:
        case Begin(reason="Resumed"):
            return ConditionChange("Suspended", "False", "Resumed", f"attempt {decision.attempt} begins")
        case Begin(reason="Changed"):
            message = f"the job was changed before it ran; attempt {decision.attempt} begins"
            return ConditionChange("Restarting", "True", "Changed", message)
        case Begin(reason="Admitted" | "Dequeued" as reason):
            return ConditionChange("Queued", "False", reason, f"attempt {decision.attempt} begins")
        case Enqueue():
            return ConditionChange("Queued", "True", decision.reason, decision.message)
        case Halt():
            return ConditionChange("Suspended", "True", decision.reason, decision.message)
        case Restart():
            return ConditionChange("Restarting", "True", decision.reason, decision.message)
        case Finish():
            return ConditionChange(decision.condition, "True", decision.reason, decision.message)
        case _:
            return None
