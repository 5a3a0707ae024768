"""`status` of a DistributedTrainingJob: the only state that the operator stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from ..spec.base import Schema, StatusModel, Time, format_time

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

    type: ConditionType = Field(description="Name of the condition.")
    status: ConditionStatus = Field(description="Whether the condition holds.")
    reason: str = Field(description="Cause in one word, for programs.")
    message: str = Field(default="", description="Cause for people, with the API's own message if there is one.")
    last_transition_time: Time = Field(description="Time of the last change of status.")
    observed_generation: int | None = Field(default=None, description="Generation of the spec that it describes.")


class ReplicaStatus(StatusModel):
    """Number of pods of one role, by phase."""

    active: int = Field(default=0, description="Pods that are neither finished nor being deleted.")
    ready: int = Field(default=0, description="Pods whose containers run.")
    succeeded: int = Field(default=0, description="Pods that succeeded.")
    failed: int = Field(default=0, description="Pods that failed.")


class ReplicaStatuses(StatusModel):
    """Pods of the current attempt by role."""

    launcher: ReplicaStatus = Field(default=ReplicaStatus(), description="The launcher's pod, by phase.")
    worker: ReplicaStatus = Field(default=ReplicaStatus(), description="The workers' pods, by phase.")


class Progress(StatusModel):
    """Progress of training, as the launcher last reported it."""

    step: int = Field(description="Lowest step of any rank.")
    total_steps: int | None = Field(default=None, description="Steps of the whole job, if reported.")
    epoch: int | None = Field(default=None, description="Epoch, if reported.")
    samples_per_second: float | None = Field(default=None, description="Samples per second, all ranks together.")
    unit: str | None = Field(default=None, description="Unit of a sample, for example images.")
    loss: float | None = Field(default=None, description="Last loss reported.")
    metrics: dict[str, float] = Field(default={}, description="Other reported numbers, for example accuracy.")
    last_progress_time: Time | None = Field(default=None, description="Time of the last report of a step.")
    started_from: str | None = Field(
        default=None, description="Checkpoint from which the last attempt continued, or a note that there was none."
    )


class StartStatus(StatusModel):
    """Timeline of the start of an attempt: the time at which each phase ended, if known.

    Times of pods come from Kubernetes; `formed` and `firstStep` come from the launcher.
    """

    attempt: int = Field(description="Attempt that this describes.")
    queued: Time | None = Field(
        default=None, description="Time at which the attempt was requested; absent if it followed another attempt."
    )
    created: Time | None = Field(default=None, description="Creation of its last pod.")
    scheduled: Time | None = Field(default=None, description="Time at which its last pod was scheduled to a node.")
    pulling: Time | None = Field(
        default=None, description="Start of the image pull of the last pod to start; absent if the node had the image."
    )
    pulled: Time | None = Field(default=None, description="End of that image pull.")
    started: Time | None = Field(default=None, description="Start of the last main container of its pods.")
    pod: str | None = Field(default=None, description="Name of the last pod to start.")
    node: str | None = Field(default=None, description="Node of that pod.")
    formed: Time | None = Field(default=None, description="Time at which the launcher started the ranks.")
    first_step: Time | None = Field(default=None, description="Time of the first report of a step.")


class Failure(StatusModel):
    """First failed rank of the last failed attempt. It stays after its pod is deleted."""

    attempt: int = Field(description="Attempt that failed.")
    rank: int | None = Field(default=None, description="First rank that failed; absent if no rank ran.")
    pod: str | None = Field(default=None, description="Its pod.")
    node: str | None = Field(default=None, description="Its node.")
    exit_code: int | None = Field(default=None, description="Its exit code.")
    signal: str | None = Field(default=None, description="Signal that killed it.")
    reason: str = Field(description="Cause in one word; failureRules match on it.")
    message: str = Field(default="", description="Cause for people.")
    log_tail: tuple[str, ...] = Field(default=(), description="Last lines of its log.")
    time: Time | None = Field(default=None, description="Time at which the operator observed it.")


class ElasticStatus(StatusModel):
    """World of an elastic job. Sums are over all attempts."""

    formation: int = Field(default=0, description="Generation of the current world within its attempt, from 1.")
    ranks: int = Field(default=0, description="Ranks in that world.")
    workers: int = Field(default=0, description="Running worker pods.")
    lost_workers: int = Field(default=0, description="Lost worker pods.")
    lost_steps: int = Field(default=0, description="Steps that were interrupted and had to be repeated.")
    recoveries: int = Field(default=0, description="Losses after which training continued without a restart.")
    last_recovery_seconds: float | None = Field(
        default=None, description="Duration of the last recovery, from the loss to the next generation of the world."
    )


class Loss(StatusModel):
    """A pod of an elastic job that was lost."""

    worker: int | None = Field(default=None, description="Index of the worker; absent for the launcher.")
    pod: str = Field(description="Name of the pod.")
    incarnation: int = Field(description="Number of the pod among those of the same name.")
    attempt: int = Field(description="Attempt in which it was lost.")
    node: str | None = Field(default=None, description="Its node.")
    cause: str = Field(description="Cause of the loss, for people.")
    failed: bool = Field(default=False, description="Whether it ended by itself instead of being removed.")
    suspect: bool = Field(default=False, description="Whether its node may be the cause.")
    time: Time = Field(description="Time at which the operator observed it.")


class Incarnations(StatusModel):
    """Successive pods of each worker. A number is written here before its pod is created."""

    numbers: tuple[int, ...] = Field(default=(), description="Number of the last pod of each worker; 0: none yet.")
    present: tuple[bool, ...] = Field(
        default=(), description="Whether that pod was observed alive; if it is no longer observed, it is lost."
    )
    joined: tuple[bool, ...] = Field(
        default=(), description="Whether its agent has registered; before that its silence is not a loss."
    )
    losses: tuple[Loss, ...] = Field(default=(), description="The most recent losses.")
    launcher: int = Field(default=0, description="Number of the launcher's last pod; 0: none yet.")
    launcher_present: bool = Field(default=False, description="Whether that pod was observed alive.")
    launcher_lost: Time | None = Field(
        default=None, description="Time since which no launcher knows the attempt's world."
    )
    lost_steps: int = Field(default=0, description="Lost steps that the current launcher does not count.")
    recoveries: int = Field(default=0, description="Recoveries that the current launcher does not count.")


class DataWorkersStatus(StatusModel):
    """Data workers, and the time that ranks wait for them."""

    desired: int = Field(default=0, description="Data workers that are wanted now.")
    ready: int = Field(default=0, description="Wanted data workers that run and have registered with the launcher.")
    wait_fraction: float | None = Field(
        default=None, description="Fraction of its time that a rank waits for input, as the launcher last reported it."
    )


class EvaluatorStatus(StatusModel):
    """State of the evaluator pod."""

    state: Literal["Pending", "Running", "Succeeded", "Failed", "Stopped"] = Field(
        description="Failed: it failed, and is created again while the job runs. Stopped: the operator ended it."
    )
    failures: int = Field(default=0, description="Failed pods of the evaluator.")
    message: str = Field(
        default="", description="Cause of the last failure, or the API's reason for refusing the next pod."
    )


# Losses older than this do not affect the backoff.
REMEMBERED_S = 3600
LONGEST_PAUSE_S = 300


def next_pod_time(last: datetime, losses: int) -> datetime | None:
    """Return the earliest creation time of the next pod of a name, or None if the pod may be created at once.

    `losses` counts losses that each followed another within an hour, the last one at `last`. The first loss causes no
    delay; from the second on the delay doubles.
    """
    return None if losses < 2 else last + timedelta(seconds=min(2 ** min(losses - 2, 30), LONGEST_PAUSE_S))


class EndedPod(StatusModel):
    """A pod that ended by itself. It is recorded before the pod is deleted, so that it counts once."""

    pod: str = Field(description="Name of the pod.")
    uid: str = Field(description="Uid of the pod: its replacement has the same name and another uid.")
    node: str | None = Field(default=None, description="Its node.")
    cause: str = Field(description="Cause of its end, for people.")
    failures: int = Field(default=0, description="Failed pods of this name, each within an hour of the previous one.")
    evaluator: bool = Field(default=False, description="Whether it was the evaluator.")
    done: bool = Field(default=False, description="Whether it was an evaluator that succeeded.")
    time: Time = Field(description="Time at which the operator observed it.")

    @property
    def next_at(self) -> datetime | None:
        """Earliest creation time of the next pod of this name, or None if the pod may be created at once."""
        return next_pod_time(self.time, self.failures)


class DataScale(StatusModel):
    """Number of data workers that autoscale wants, and the measurements behind it."""

    replicas: int = Field(description="Data workers that are wanted.")
    asked: int = Field(description="Value of dataWorkers.replicas at the start.")
    workers: int = Field(description="Workers of the world in which it was measured.")
    too_few: int = Field(default=0, description="Largest number of data workers with which ranks waited too long.")
    above_since: Time | None = Field(default=None, description="Time since which ranks wait too long.")
    below_since: Time | None = Field(default=None, description="Time since which ranks hardly wait.")


class LostPod(StatusModel):
    """A pod that went silent; it is not known yet whether its node is to blame."""

    uid: str = Field(description="Uid of the pod.")
    pod: str = Field(description="Its name.")
    node: str | None = Field(default=None, description="Its node.")
    since: Time = Field(description="Time of its last sign of life.")


class Ledger(StatusModel):
    """Internal state of the operator about the job's past, on which it bases decisions. Not for users."""

    attempt_workers: int = Field(default=0, description="Number of workers of the current attempt.")
    credentials: int = Field(default=0, description="Number of the Secret that the job's pods mount.")
    credentials_mounted: int | None = Field(
        default=None,
        description="Number of the last Secret that the job's pods mounted, which shows that the operator created it.",
    )
    restart_not_before: Time | None = Field(default=None, description="Earliest start of this attempt's pods.")
    restart_delay_seconds: int = Field(default=0, description="Delay before the last restart.")
    active_since: Time | None = Field(default=None, description="Time from which activeDeadlineSeconds counts.")
    active_seconds: int = Field(default=0, description="Active seconds before the last suspension.")
    begun_with: str | None = Field(
        default=None,
        description="Digest of the fields that can change only while suspended, as of the last start or queueing.",
    )
    has_run: bool = Field(
        default=False,
        description="Whether all pods of an attempt have run; until then the frozen fields may change, too.",
    )
    queued_as: Literal["Workload", "PodGroup"] | None = Field(
        default=None, description="Kind of object by which Kueue manages the job or its attempt; absent: none."
    )
    gang_scheduler: Literal["Kubernetes", "Coscheduling", "Volcano"] | None = Field(
        default=None, description="Scheduler that places the attempt's pods all at once; absent: none."
    )
    incarnations: Incarnations | None = Field(
        default=None, description="Successive pods of each worker of an elastic job."
    )
    ended_pods: tuple[EndedPod, ...] = Field(
        default=(), description="Last pod that ended, for each data worker and the evaluator."
    )
    data_scale: DataScale | None = Field(
        default=None, description="Number of data workers that autoscale wants, and the measurements behind it."
    )
    lost_pod: LostPod | None = Field(
        default=None, description="Silent pod that decides whether the last restart counts."
    )
    line_since: Time | None = Field(
        default=None,
        description="Place in the queue of jobs that wait for all their pods to be placed; earliest first.",
    )
    waits_since: Time | None = Field(default=None, description="Start of the wait; its place may be a later time.")
    line_wants: dict[str, int] = Field(
        default={}, description="Resources that it competes for: each worker's devices by name, and room."
    )
    line_workers: int = Field(default=0, description="Workers that the job needs to start.")
    line_reserves: bool = Field(default=False, description="Whether jobs behind it in the queue must wait for a while.")
    refused_since: Time | None = Field(
        default=None, description="Time since which the API refuses some of the current attempt's pods."
    )
    refused: str = Field(
        default="",
        description="Message of the API or of a kubelet, while the job waits without pods for another try.",
    )
    queued_since: Time | None = Field(default=None, description="Time since which the job waits without pods.")
    too_large: bool = Field(default=False, description="Whether it waits for nodes that the cluster does not have.")


class TemplateStatus(StatusModel):
    """The template that the job was accepted with. Later changes of the template do not affect the job."""

    kind: str = Field(description="ClusterTrainingTemplate or TrainingTemplate.")
    name: str = Field(description="Its name.")
    hash: str = Field(description="Digest of its spec.")
    spec: Annotated[dict[str, Any], Schema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})] = Field(
        description="Its spec: a part of a job's spec."
    )


class JobStatus(StatusModel):
    """Status of a job, including everything that the operator knows about the job's past."""

    observed_generation: int | None = Field(default=None, description="Generation of the spec last acted upon.")
    state: State | None = Field(default=None, description="The conditions in one word.")
    reason: str = Field(default="", description="Reason of the most important condition, in one word.")
    message: str = Field(default="", description="Message of that condition.")
    conditions: tuple[Condition, ...] = Field(default=(), description="Kubernetes' conditions.")
    attempt: int = Field(default=0, description="Number of the current attempt; its pods have it as a label.")
    restarts: int = Field(default=0, description="Restarts counted against backoffLimit.")
    disruptions: int = Field(default=0, description="Restarts that the job did not cause; they are not counted.")
    start_time: Time | None = Field(default=None, description="Time at which the job was first accepted unsuspended.")
    completion_time: Time | None = Field(default=None, description="Time at which the job ended.")
    replicas: int = Field(default=0, description="Worker pods that exist (scale subresource).")
    selector: str = Field(default="", description="Labels of the worker pods (scale subresource).")
    workers: str = Field(default="", description="Ready workers of wanted workers; - when the job has ended.")
    replica_statuses: ReplicaStatuses = Field(default=ReplicaStatuses(), description="Pods of the current attempt.")
    elastic: ElasticStatus | None = Field(
        default=None, description="World of an elastic job. Sums are over all attempts."
    )
    data_workers: DataWorkersStatus | None = Field(
        default=None, description="Data workers, and the time that ranks wait for them."
    )
    evaluator: EvaluatorStatus | None = Field(default=None, description="State of the evaluator pod.")
    progress: Progress | None = Field(default=None, description="Progress of training, as last reported.")
    progress_summary: str = Field(default="", description="Progress in a few characters.")
    start: StartStatus | None = Field(
        default=None, description="Timeline of the start of the last attempt that started."
    )
    failure: Failure | None = Field(
        default=None, description="First failure of the last failed attempt. It stays after its pod is deleted."
    )

    template: TemplateStatus | None = Field(default=None, description="The template that the job was accepted with.")
    ledger: Ledger = Field(
        default=Ledger(), description="Internal state of the operator about the job's past. Not for users."
    )

    def with_ledger(self, **changes: Any) -> JobStatus:
        """Return this status with `changes` in its ledger; itself if nothing changes."""
        if all(getattr(self.ledger, name) == value for name, value in changes.items()):
            return self
        return self.model_copy(update={"ledger": self.ledger.model_copy(update=changes)})

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return the condition of this type; None if absent."""
        for one in self.conditions:
            if one.type == kind:
                return one
        return None

    def is_true(self, kind: ConditionType) -> bool:
        """Return whether the condition of this type holds."""
        found = self.condition(kind)
        return found is not None and found.status == "True"

    @property
    def finished(self) -> bool:
        """Whether the job has ended. An ended job never runs again."""
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
    """Return `status` with `changes` applied. If two changes have the same type, the later one counts."""
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
    """Parse an object's status; an absent one becomes an empty status."""
    return JobStatus.model_validate(dict(raw or {}))


def dump_status(status: JobStatus) -> dict[str, Any]:
    """Serialise `status` for the API, without empty optional fields."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
