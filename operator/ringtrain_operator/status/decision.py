"""Interface of policies: the decisions that they can make, their records in status.ledger, their next check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ..placement.own_queue import PlacementContender
from .ledger import LostPod
from .model import ConditionChange, Failure, JobStatus
from .situation import Situation


@dataclass(frozen=True)
class Begin:
    """Decision to start an attempt: the first one, or the next one after a suspension or in a queue."""

    attempt: int
    reason: Literal["Started", "Resumed", "Admitted", "Dequeued", "Changed"]


@dataclass(frozen=True)
class Halt:
    """Decision to delete the pods and release the quota, until the job is resumed."""

    reason: Literal["Suspended", "Changed"] = "Suspended"
    message: str = "runPolicy.suspend is set; the pods are deleted"


@dataclass(frozen=True)
class Enqueue:
    """Decision to delete the pods and wait in Kueue's queue. `disrupted`: the job did not cause this."""

    reason: str
    message: str
    disrupted: bool = False


@dataclass(frozen=True)
class Restart:
    """Decision to end this attempt and start the next one.

    `counted`: whether the restart counts against backoffLimit. `delayed`: whether the restart waits for the backoff.
    `lost`: a pod that went silent; the state of the pod's node decides later whether the restart counts.
    """

    reason: str
    message: str
    counted: bool = False
    delayed: bool = True
    failure: Failure | None = None
    lost: LostPod | None = None


@dataclass(frozen=True)
class Resize:
    """Decision to continue with another number of workers, which join or leave within the attempt."""

    workers: int


@dataclass(frozen=True)
class Finish:
    """Decision to end the job permanently."""

    condition: Literal["Succeeded", "Failed"]
    reason: str
    message: str
    failure: Failure | None = None


@dataclass(frozen=True)
class GiveWay:
    """Decision to delete the pods of a gang that is only partly placed, and to wait without pods.

    `place`: the job's place in the queue; None if the job blocks no other job. This is so if the job is `too_large` for
    the cluster, or if a part of it was `refused` (the message of the API or of a kubelet).
    """

    place: PlacementContender | None
    too_large: bool = False
    refused: str = ""


@dataclass(frozen=True)
class Place:
    """Decision to create the pods of a job that waited without pods. `since`: start of its wait in the queue."""

    since: datetime


Decision = Begin | Halt | Enqueue | Restart | Resize | GiveWay | Place | Finish


@dataclass(frozen=True)
class PolicyResult:
    """Decision of a policy, or None, and the time of its next check. `is_last`: skip the policies after this one."""

    decision: Decision | None = None
    requeue_at: datetime | None = None
    is_last: bool = False


NO_DECISION = PolicyResult()


@dataclass(frozen=True)
class Policy:
    """One concern of the operator, such as deadlines: decides, and updates its part of the status.

    `decide` proposes a decision. `record` returns the status with this policy's ledger entries; it is called with the
    decision that was made. `requeue_times` returns, for the new status, the times at which to reconcile if nothing else
    happens. A policy with `elastic` runs for elastic jobs only.
    """

    decide: Callable[[Situation], PolicyResult] | None = None
    record: Callable[[Situation, Decision | None], JobStatus] | None = None
    requeue_times: Callable[[Situation], tuple[datetime, ...]] | None = None
    elastic: bool = False


def condition_of(decision: Decision) -> ConditionChange | None:
    """Return the change of a condition that a decision causes; None if it causes none."""
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
