"""Model of the `status` of a DistributedTrainingJob, which is the only state that the operator stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from ..spec.base import Schema, StatusModel, Time, format_time
from .ledger import Ledger

__all__ = ["format_time"]


State = Literal["Pending", "Queued", "Running", "Restarting", "Suspended", "Succeeded", "Failed", "Rejected"]
ConditionType = Literal[
    "Accepted",
    "Running",
    "Degraded",
    "InputStalled",
    "LogsNotShipped",
    "Suspended",
    "Queued",
    "Restarting",
    "Succeeded",
    "Failed",
]
ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(StatusModel):
    """A Kubernetes condition; lastTransitionTime changes only when `status` does."""

    type: ConditionType = Field(description="Type of the condition, such as Running.")
    status: ConditionStatus = Field(description="Whether the condition is true.")
    reason: str = Field(description="Cause in one word, for programs.")
    message: str = Field(default="", description="Cause for people, with the API's own message if there is one.")
    last_transition_time: Time = Field(description="Time at which the condition's status last changed.")
    observed_generation: int | None = Field(
        default=None, description="Generation of the job's spec that the condition describes."
    )


class ReplicaStatus(StatusModel):
    """Number of pods of one role, by phase."""

    active: int = Field(default=0, description="Number of pods that are neither finished nor being deleted.")
    ready: int = Field(default=0, description="Number of pods whose containers run.")
    succeeded: int = Field(default=0, description="Number of pods that succeeded.")
    failed: int = Field(default=0, description="Number of pods that failed.")


class ReplicaStatuses(StatusModel):
    """Pods of the current attempt by role."""

    launcher: ReplicaStatus = Field(default=ReplicaStatus(), description="Number of launcher pods by phase: 0 or 1.")
    worker: ReplicaStatus = Field(default=ReplicaStatus(), description="Numbers of worker pods by phase.")


class Progress(StatusModel):
    """Progress of the current attempt, as its launcher last reported it."""

    step: int = Field(description="Step that the slowest rank has reached.")
    total_steps: int | None = Field(default=None, description="Number of steps of the whole job, if reported.")
    epoch: int | None = Field(default=None, description="Current epoch, if reported.")
    samples_per_second: float | None = Field(default=None, description="Samples per second, all ranks together.")
    unit: str | None = Field(default=None, description="Unit of samples, for example images.")
    loss: float | None = Field(default=None, description="Training loss in this step: mean over the ranks.")
    metrics: dict[str, float] = Field(default={}, description="Means over ranks of other reported numbers.")
    not_finite: str | None = Field(
        default=None, description="Values that are NaN or infinite, such as `loss NaN since step 9 (rank 0)`."
    )
    last_progress_time: Time | None = Field(default=None, description="Time of the last report of a step.")
    started_from: str | None = Field(
        default=None, description="Checkpoint from which the attempt continued, or a text that there was none."
    )


class StartStatus(StatusModel):
    """Timeline of the start of an attempt: the time at which each phase ended, if known.

    Times of pods come from Kubernetes; `formed` and `firstStep` come from the launcher.
    """

    attempt: int = Field(description="Number of the attempt to which these times belong.")
    queued: Time | None = Field(
        default=None,
        description="Time at which the attempt was requested; absent if the attempt followed another attempt.",
    )
    created: Time | None = Field(default=None, description="Time at which the attempt's last pod was created.")
    scheduled: Time | None = Field(
        default=None, description="Time at which the attempt's last pod was scheduled to a node."
    )
    pulling: Time | None = Field(
        default=None, description="Start of the image pull of the last pod to start; absent if the node had the image."
    )
    pulled: Time | None = Field(default=None, description="End of the image pull of the last pod to start.")
    started: Time | None = Field(
        default=None, description="Time at which the main container of the last pod to start has started."
    )
    pod: str | None = Field(default=None, description="Name of the last pod to start.")
    node: str | None = Field(default=None, description="Node of the last pod to start.")
    formed: Time | None = Field(default=None, description="Time at which the launcher started the ranks.")
    first_step: Time | None = Field(default=None, description="Time at which a rank first reported a step.")


class Failure(StatusModel):
    """First failed rank of the last failed attempt, also after its pod is deleted."""

    attempt: int = Field(description="Number of the attempt that failed.")
    rank: int | None = Field(default=None, description="First rank that failed; absent if no rank ran.")
    pod: str | None = Field(default=None, description="Pod of the failed rank.")
    node: str | None = Field(default=None, description="Node of the failed rank.")
    exit_code: int | None = Field(default=None, description="Exit code of the failed rank.")
    signal: str | None = Field(default=None, description="Signal that killed the failed rank.")
    reason: str = Field(description="Cause of the failure in one word, on which failureRules match.")
    message: str = Field(default="", description="Cause of the failure as a sentence.")
    log_tail: tuple[str, ...] = Field(default=(), description="Last lines of the failed rank's log.")
    time: Time | None = Field(default=None, description="Time at which the operator observed the failure.")


class ElasticStatus(StatusModel):
    """World of an elastic job. Counts are totals over all attempts."""

    formation: int = Field(default=0, description="Generation of the current world within its attempt, from 1.")
    ranks: int = Field(default=0, description="Number of ranks in the current world.")
    workers: int = Field(default=0, description="Number of running worker pods.")
    lost_workers: int = Field(default=0, description="Number of lost worker pods.")
    lost_steps: int = Field(default=0, description="Number of steps that were interrupted and had to be repeated.")
    recoveries: int = Field(
        default=0,
        description="Number of times that a loss of ranks interrupted training, and training continued without a "
        "restart. A pod that is deleted gracefully leaves without an interruption.",
    )
    last_recovery_seconds: float | None = Field(
        default=None,
        description="Seconds that the last recovery took, from the loss to the next generation of the world.",
    )


class DataWorkersStatus(StatusModel):
    """Data workers, and the time that ranks wait for them."""

    desired: int = Field(default=0, description="Number of data workers that the job needs now.")
    ready: int = Field(
        default=0, description="Number of needed data workers that run and have registered with the launcher."
    )
    wait_fraction: float | None = Field(
        default=None, description="Fraction of its time that a rank waits for input, as the launcher last reported it."
    )


class EvaluatorStatus(StatusModel):
    """State of the evaluator pod."""

    state: Literal["Pending", "Running", "Succeeded", "Failed", "Stopped"] = Field(
        description="State of the evaluator. Failed: it is created again while the job runs. Stopped: the operator "
        "ended it."
    )
    failures: int = Field(default=0, description="Number of the evaluator's pods that have failed.")
    message: str = Field(
        default="", description="Cause of the evaluator's last failure, or the API's reason for refusing its next pod."
    )


class TemplateStatus(StatusModel):
    """The template that the job was accepted with. Later changes of the template do not affect the job."""

    kind: str = Field(description="Kind of the template: ClusterTrainingTemplate or TrainingTemplate.")
    name: str = Field(description="Name of the template.")
    hash: str = Field(description="Digest of the template's spec.")
    spec: Annotated[dict[str, Any], Schema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})] = Field(
        description="Fields of a job's spec for which the template provides defaults."
    )


class JobStatus(StatusModel):
    """Status of a job, including everything that the operator knows about the job's past."""

    observed_generation: int | None = Field(
        default=None, description="Generation of the spec for which the operator last acted."
    )
    state: State | None = Field(default=None, description="State of the job in one word, derived from the conditions.")
    reason: str = Field(default="", description="Reason of the most important condition, in one word.")
    message: str = Field(default="", description="Message of the most important condition.")
    conditions: tuple[Condition, ...] = Field(
        default=(), description="Conditions of the job, as in other Kubernetes objects."
    )
    attempt: int = Field(default=0, description="Number of the current attempt; its pods have it as a label.")
    restarts: int = Field(default=0, description="Number of restarts that count against runPolicy.backoffLimit.")
    disruptions: int = Field(
        default=0, description="Number of restarts that the job did not cause. They do not count against backoffLimit."
    )
    start_time: Time | None = Field(
        default=None, description="Time at which the operator first accepted the job while it was not suspended."
    )
    completion_time: Time | None = Field(default=None, description="Time at which the job ended.")
    replicas: int = Field(default=0, description="Number of existing worker pods, for the scale subresource.")
    selector: str = Field(default="", description="Label selector of the worker pods, for the scale subresource.")
    workers: str = Field(
        default="",
        description="Numbers of ready and wanted workers as a text such as 3/4; after the job's end the "
        "text is a dash.",
    )
    replica_statuses: ReplicaStatuses = Field(
        default=ReplicaStatuses(), description="Numbers of pods of the current attempt, by role."
    )
    elastic: ElasticStatus | None = Field(
        default=None, description="World of an elastic job. Counts are totals over all attempts."
    )
    data_workers: DataWorkersStatus | None = Field(
        default=None, description="Data workers, and the time that ranks wait for them."
    )
    evaluator: EvaluatorStatus | None = Field(default=None, description="State of the evaluator pod.")
    progress: Progress | None = Field(default=None, description="Progress of the current attempt, as last reported.")
    progress_summary: str = Field(default="", description="Progress of the current attempt as a short text.")
    start: StartStatus | None = Field(
        default=None, description="Timeline of the start of the last attempt that started."
    )
    failure: Failure | None = Field(
        default=None, description="First failed rank of the last failed attempt, also after its pod is deleted."
    )

    template: TemplateStatus | None = Field(
        default=None, description="Copy of the template from which the job got its defaults when it was accepted."
    )
    ledger: Ledger = Field(
        default=Ledger(), description="Internal state of the operator about the job's past. Not for users."
    )

    def with_ledger(self, **changes: Any) -> JobStatus:
        """Return this status with `changes` to its ledger; the same object if they change nothing."""
        if all(getattr(self.ledger, name) == value for name, value in changes.items()):
            return self
        return self.model_copy(update={"ledger": self.ledger.model_copy(update=changes)})

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return the job's condition of type `kind`; None if absent."""
        for one in self.conditions:
            if one.type == kind:
                return one
        return None

    def is_true(self, kind: ConditionType) -> bool:
        """Return whether the job's condition of type `kind` is True."""
        found = self.condition(kind)
        return found is not None and found.status == "True"

    @property
    def finished(self) -> bool:
        """Whether the job has succeeded or failed, so that it never runs again."""
        return self.is_true("Succeeded") or self.is_true("Failed")


ORDER: tuple[ConditionType, ...] = get_args(ConditionType)


@dataclass(frozen=True)
class ConditionChange:
    """A change to one condition."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    message: str = ""


def with_conditions(
    status: JobStatus, changes: tuple[ConditionChange, ...], generation: int, now: datetime
) -> JobStatus:
    """Return `status` with changed conditions. If two changes have the same type, the later one is used."""
    conditions: dict[ConditionType, Condition] = {c.type: c for c in status.conditions}
    for one in changes:
        before = status.condition(one.type)
        fields: dict[str, Any] = {"reason": one.reason, "message": one.message, "observed_generation": generation}
        if before is not None and before.status == one.status:
            conditions[one.type] = before.model_copy(update=fields)
        else:
            conditions[one.type] = Condition(type=one.type, status=one.status, last_transition_time=now, **fields)
    return status.model_copy(update={"conditions": tuple(conditions[t] for t in ORDER if t in conditions)})


def parse_status(raw: Mapping[str, Any] | None) -> JobStatus:
    """Parse the status of a job as read from the API; None gives an empty status."""
    return JobStatus.model_validate(dict(raw or {}))


def dump_status(status: JobStatus) -> dict[str, Any]:
    """Return `status` as a dict for the API, without empty optional fields."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
