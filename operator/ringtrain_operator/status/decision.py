"""Interface of a policy: its possible decisions, the ledger entries that it writes, and its next requeue time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ..placement.own_queue import PlacementContender
from .model import ConditionChange, Failure, JobStatus, LostPod
from .situation import Situation


@dataclass(frozen=True)
class Begin:
    """Start the first attempt, or the next one after a suspension or in a queue."""

    attempt: int
    reason: Literal["Started", "Resumed", "Admitted", "Dequeued", "Changed"]


@dataclass(frozen=True)
class Halt:
    """Delete the pods, release quota, and wait to be resumed."""

    reason: Literal["Suspended", "Changed"] = "Suspended"
    message: str = "runPolicy.suspend is set; the pods are deleted"


@dataclass(frozen=True)
class Enqueue:
    """Delete the pods and wait in the queue. `disrupted`: the attempt ended for a reason outside the job."""

    reason: str
    message: str
    disrupted: bool = False


@dataclass(frozen=True)
class Restart:
    """End this attempt and start the next.

    `counted`: the restart counts against backoffLimit. `delayed`: it waits for the backoff. `lost`: a pod that went
    silent; the state of its node decides later whether the restart counts.
    """

    reason: str
    message: str
    counted: bool = False
    delayed: bool = True
    failure: Failure | None = None
    lost: LostPod | None = None


@dataclass(frozen=True)
class Resize:
    """Continue with another number of workers, which join or leave within the attempt."""

    workers: int


@dataclass(frozen=True)
class Finish:
    """End the job permanently."""

    condition: Literal["Succeeded", "Failed"]
    reason: str
    message: str
    failure: Failure | None = None


@dataclass(frozen=True)
class GiveWay:
    """Delete the pods of a gang that is not completely placed, and wait without pods.

    `place`: the job's place in the queue, or None if the job is `too_large` for the cluster, or a part of it was
    `refused` (the message of the API or of a kubelet); it then blocks no other job.
    """

    place: PlacementContender | None
    too_large: bool = False
    refused: str = ""


@dataclass(frozen=True)
class Place:
    """Create the pods of a job that was queued. `since`: time since which the job has its place in the queue."""

    since: datetime


Decision = Begin | Halt | Enqueue | Restart | Resize | GiveWay | Place | Finish


@dataclass(frozen=True)
class PolicyResult:
    """A policy's decision, if any, and its next requeue time. `is_last`: whether the policies after this one are
    skipped."""

    decision: Decision | None = None
    requeue_at: datetime | None = None
    is_last: bool = False


NO_DECISION = PolicyResult()


@dataclass(frozen=True)
class Policy:
    """One policy. The first decision of any policy wins; then every policy updates the status and may request a
    requeue.

    `decide` proposes a decision. `record` returns the status with this policy's ledger entries; it is called with the
    decision that was made. `requeue_times` returns, for the new status, the times at which to reconcile if nothing else
    happens. A policy with `elastic` runs for elastic jobs only.
    """

    decide: Callable[[Situation], PolicyResult] | None = None
    record: Callable[[Situation, Decision | None], JobStatus] | None = None
    requeue_times: Callable[[Situation], tuple[datetime, ...]] | None = None
    elastic: bool = False


def condition_of(decision: Decision) -> ConditionChange | None:
    """Return the condition change for a decision; None if it changes no condition."""
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
