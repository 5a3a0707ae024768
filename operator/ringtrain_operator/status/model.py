"""`status` of a DistributedTrainingJob: all the memory that the operator has."""

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
    """One of Kubernetes' own conditions; lastTransitionTime moves only when `status` does."""

    type: ConditionType = Field(description="What is said.")
    status: ConditionStatus = Field(description="Whether it holds.")
    reason: str = Field(description="Why, in one word for programs.")
    message: str = Field(default="", description="Why, for people, with the API's own words where it has any.")
    last_transition_time: Time = Field(description="When the status last changed.")
    observed_generation: int | None = Field(default=None, description="Generation of the spec that this is about.")


class ReplicaStatus(StatusModel):
    """How many pods of one role are in which phase."""

    active: int = Field(default=0, description="Pods that are neither finished nor being deleted.")
    ready: int = Field(default=0, description="Pods whose containers run.")
    succeeded: int = Field(default=0, description="Pods that ended well.")
    failed: int = Field(default=0, description="Pods that ended badly.")


class ReplicaStatuses(StatusModel):
    """Pods of the present attempt by role."""

    launcher: ReplicaStatus = Field(default=ReplicaStatus(), description="The launcher's pod, by phase.")
    worker: ReplicaStatus = Field(default=ReplicaStatus(), description="The workers' pods, by phase.")


class Progress(StatusModel):
    """How far training is, as the launcher last told."""

    step: int = Field(description="Lowest step of any rank.")
    total_steps: int | None = Field(default=None, description="Steps that the job has, if it says so.")
    epoch: int | None = Field(default=None, description="Epoch, if the job says so.")
    samples_per_second: float | None = Field(default=None, description="Samples a second, all ranks together.")
    unit: str | None = Field(default=None, description="What a sample is, for example images.")
    loss: float | None = Field(default=None, description="Last loss reported.")
    metrics: dict[str, float] = Field(default={}, description="Other numbers reported, for example accuracy.")
    last_progress_time: Time | None = Field(default=None, description="When a step was last reported.")
    started_from: str | None = Field(
        default=None, description="Checkpoint that the last attempt went on from, or that there was none."
    )


class StartStatus(StatusModel):
    """Where the start of an attempt went: when each part of it ended, as far as that is known.

    Times of pods are Kubernetes' own, `formed` and `firstStep` are the launcher's.
    """

    attempt: int = Field(description="Attempt whose start this is.")
    queued: Time | None = Field(
        default=None, description="When the attempt was asked for; absent where it followed another one."
    )
    created: Time | None = Field(default=None, description="When the last of its pods was made.")
    scheduled: Time | None = Field(default=None, description="When the last of its pods had found a node.")
    pulling: Time | None = Field(
        default=None, description="When the pod that started last began to pull its image; absent: it was there."
    )
    pulled: Time | None = Field(default=None, description="When that pod had its image.")
    started: Time | None = Field(default=None, description="When the last of its pods' main containers started.")
    pod: str | None = Field(default=None, description="The pod that started last.")
    node: str | None = Field(default=None, description="Its node.")
    formed: Time | None = Field(default=None, description="When the launcher started the ranks.")
    first_step: Time | None = Field(default=None, description="When the first report of a step came.")


class Failure(StatusModel):
    """The first rank that failed in the last attempt that did. It outlives its pod."""

    attempt: int = Field(description="Attempt that failed.")
    rank: int | None = Field(default=None, description="First rank that failed; absent when none ran.")
    pod: str | None = Field(default=None, description="Its pod.")
    node: str | None = Field(default=None, description="Its node.")
    exit_code: int | None = Field(default=None, description="Its exit code.")
    signal: str | None = Field(default=None, description="Signal that killed it.")
    reason: str = Field(description="Why, in one word; failureRules match on it.")
    message: str = Field(default="", description="Why, for people.")
    log_tail: tuple[str, ...] = Field(default=(), description="Last lines that it wrote.")
    time: Time | None = Field(default=None, description="When the operator learned of it.")


class ElasticStatus(StatusModel):
    """The world of an elastic job. Sums are over all attempts."""

    formation: int = Field(default=0, description="Number of the present world within its attempt, from 1.")
    ranks: int = Field(default=0, description="Ranks in it.")
    workers: int = Field(default=0, description="Worker pods that run.")
    lost_workers: int = Field(default=0, description="Worker pods that were lost.")
    lost_steps: int = Field(default=0, description="Steps that were under way and had to be done again.")
    recoveries: int = Field(default=0, description="Losses after which training went on without a restart.")
    last_recovery_seconds: float | None = Field(
        default=None, description="How long the last of them took, from the loss to the next formation."
    )


class Loss(StatusModel):
    """A pod of an elastic job that was lost."""

    worker: int | None = Field(default=None, description="Index of the worker; absent: it was the launcher's.")
    pod: str = Field(description="Name of the pod.")
    incarnation: int = Field(description="Which pod of that name it was.")
    attempt: int = Field(description="Attempt in which it was lost.")
    node: str | None = Field(default=None, description="Its node.")
    cause: str = Field(description="What became of it, for people.")
    failed: bool = Field(default=False, description="Whether it ended by itself, and was not taken away.")
    suspect: bool = Field(default=False, description="Whether its node may be the cause.")
    time: Time = Field(description="When the operator learned of it.")


class Incarnations(StatusModel):
    """Pods of the same worker, one after the other. A number is written here before its pod is made."""

    numbers: tuple[int, ...] = Field(default=(), description="Number of the last pod of each worker; 0: none yet.")
    present: tuple[bool, ...] = Field(
        default=(), description="Whether that pod was seen alive; one that is seen no more is lost then."
    )
    joined: tuple[bool, ...] = Field(
        default=(), description="Whether its agent has registered; only then its silence means something."
    )
    losses: tuple[Loss, ...] = Field(default=(), description="The last losses.")
    launcher: int = Field(default=0, description="Number of the launcher's last pod; 0: none yet.")
    launcher_present: bool = Field(default=False, description="Whether that pod was seen alive.")
    launcher_lost: Time | None = Field(
        default=None, description="Since when the attempt's world has no launcher that knows it."
    )
    lost_steps: int = Field(default=0, description="Steps of which the present launcher knows nothing.")
    recoveries: int = Field(default=0, description="Recoveries of which the present launcher knows nothing.")


class DataWorkersStatus(StatusModel):
    """Data workers, and what ranks wait for them."""

    desired: int = Field(default=0, description="Data workers that are wanted now.")
    ready: int = Field(default=0, description="Those of them that run and have registered with the launcher.")
    wait_fraction: float | None = Field(
        default=None, description="Part of its time that a rank waits for input, as the launcher last told."
    )


class EvaluatorStatus(StatusModel):
    """The evaluator."""

    state: Literal["Pending", "Running", "Succeeded", "Failed", "Stopped"] = Field(
        description="Failed: it ended badly, and is made anew while the job runs. Stopped: it was asked to end."
    )
    failures: int = Field(default=0, description="Pods of it that ended badly.")
    message: str = Field(
        default="", description="What became of the last one that did, or why the API refuses the next one."
    )


# A loss that is so long ago says nothing about the next one.
REMEMBERED_S = 3600
LONGEST_PAUSE_S = 300


def status_after_pause(last: datetime, losses: int) -> datetime | None:
    """When the next pod of a name may be made that was lost so often within an hour, and `last` then.

    None: at once. One loss is bad luck; from the second on pauses double.
    """
    return None if losses < 2 else last + timedelta(seconds=min(2 ** min(losses - 2, 30), LONGEST_PAUSE_S))


class EndedPod(StatusModel):
    """A pod that ended by itself. It is noted before the pod is deleted, so that it counts once."""

    pod: str = Field(description="Name of the pod.")
    uid: str = Field(description="Its uid: the next one of the name is another.")
    node: str | None = Field(default=None, description="Its node.")
    cause: str = Field(description="How it ended, for people.")
    failures: int = Field(default=0, description="How many of its name ended badly, each within an hour of another.")
    evaluator: bool = Field(default=False, description="Whether it was the evaluator.")
    done: bool = Field(default=False, description="Whether it was an evaluator that ended well.")
    time: Time = Field(description="When the operator learned of it.")

    @property
    def next_at(self) -> datetime | None:
        """When the next pod of the name may be made; None: at once."""
        return status_after_pause(self.time, self.failures)


class DataScale(StatusModel):
    """How many data workers autoscale wants, and what it has learned."""

    replicas: int = Field(description="Data workers that are wanted.")
    asked: int = Field(description="dataWorkers.replicas with which it began.")
    workers: int = Field(description="Workers of the world for which it was learned.")
    too_few: int = Field(default=0, description="The largest number with which ranks waited too long.")
    above_since: Time | None = Field(default=None, description="Since when ranks wait too long.")
    below_since: Time | None = Field(default=None, description="Since when ranks hardly wait.")


class LostPod(StatusModel):
    """A pod that went silent, while it is not known whether its node is to blame."""

    uid: str = Field(description="Which pod it was.")
    pod: str = Field(description="Its name.")
    node: str | None = Field(default=None, description="Its node.")
    since: Time = Field(description="When it was heard last.")


class Ledger(StatusModel):
    """The operator's own notes on a job's past, from which it decides; of no interest to users."""

    attempt_workers: int = Field(default=0, description="Workers that the present attempt was made with.")
    credentials: int = Field(default=0, description="Number of the Secret that the job's pods mount.")
    credentials_mounted: int | None = Field(
        default=None,
        description="Number of the last Secret that pods of the job mounted: the operator made that one.",
    )
    restart_not_before: Time | None = Field(default=None, description="Earliest start of this attempt's pods.")
    restart_delay_seconds: int = Field(default=0, description="Delay before the last restart.")
    active_since: Time | None = Field(default=None, description="Since when activeDeadlineSeconds counts.")
    active_seconds: int = Field(default=0, description="Seconds that counted before the last suspension.")
    begun_with: str | None = Field(
        default=None,
        description="Digest of what can change only while the job is suspended, as when it last began or queued.",
    )
    has_run: bool = Field(
        default=False,
        description="Whether all pods of an attempt have run; until then what the job is made of may change.",
    )
    queued_as: Literal["Workload", "PodGroup"] | None = Field(
        default=None, description="How Kueue knows the job, or its present attempt; absent: it does not."
    )
    gang_scheduler: Literal["Kubernetes", "Coscheduling", "Volcano"] | None = Field(
        default=None, description="Who places all pods of the present attempt or none; absent: nobody does."
    )
    incarnations: Incarnations | None = Field(
        default=None, description="Pods of an elastic job's workers, of each one after the other."
    )
    ended_pods: tuple[EndedPod, ...] = Field(
        default=(), description="Of each data worker, and of the evaluator, the last pod that ended."
    )
    data_scale: DataScale | None = Field(
        default=None, description="How many data workers autoscale wants, and what it has learned."
    )
    lost_pod: LostPod | None = Field(
        default=None, description="Pod that went silent, for which the last restart may or may not count."
    )
    line_since: Time | None = Field(
        default=None, description="Place among the jobs that wait to be placed whole; the earliest comes first."
    )
    waits_since: Time | None = Field(default=None, description="Since when it waits; its place may be a later one.")
    line_wants: dict[str, int] = Field(
        default={}, description="What it competes for there: each worker's devices by name, and room."
    )
    line_workers: int = Field(default=0, description="Workers without which it can't begin.")
    line_reserves: bool = Field(
        default=False, description="Whether nobody behind it may be placed before it, for a while."
    )
    refused_since: Time | None = Field(
        default=None, description="Since when the API refuses a part of the present attempt's pods."
    )
    refused: str = Field(
        default="",
        description="Why, in the API's or a kubelet's words, while the job waits without pods for another try.",
    )
    queued_since: Time | None = Field(default=None, description="Since when the job waits without pods.")
    too_large: bool = Field(default=False, description="Whether it waits for nodes that the cluster has not.")


class TemplateStatus(StatusModel):
    """The template that the job was accepted with. What becomes of that since changes nothing for the job."""

    kind: str = Field(description="ClusterTrainingTemplate or TrainingTemplate.")
    name: str = Field(description="Its name.")
    hash: str = Field(description="Of what it said.")
    spec: Annotated[dict[str, Any], Schema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})] = Field(
        description="What it said: a part of a job's spec."
    )


class JobStatus(StatusModel):
    """What the operator says about a job, and all it knows about the job's past."""

    observed_generation: int | None = Field(default=None, description="Generation of the spec last acted upon.")
    state: State | None = Field(default=None, description="The conditions in one word.")
    reason: str = Field(default="", description="Why, in one word: the reason of the condition that says most.")
    conditions: tuple[Condition, ...] = Field(default=(), description="Kubernetes' conditions.")
    attempt: int = Field(default=0, description="Lives of the gang so far; its pods carry the number.")
    restarts: int = Field(default=0, description="Restarts counted against backoffLimit.")
    disruptions: int = Field(default=0, description="Restarts that were not the job's fault, not counted.")
    start_time: Time | None = Field(default=None, description="When the job was first accepted, not suspended.")
    completion_time: Time | None = Field(default=None, description="When the job ended.")
    replicas: int = Field(default=0, description="Worker pods that exist (scale subresource).")
    selector: str = Field(default="", description="Labels of the worker pods (scale subresource).")
    workers: str = Field(default="", description="Workers ready of workers wanted; - when the job has ended.")
    replica_statuses: ReplicaStatuses = Field(default=ReplicaStatuses(), description="Pods of the present attempt.")
    elastic: ElasticStatus | None = Field(
        default=None, description="The world of an elastic job. Sums are over all attempts."
    )
    data_workers: DataWorkersStatus | None = Field(
        default=None, description="Data workers, and what ranks wait for them."
    )
    evaluator: EvaluatorStatus | None = Field(default=None, description="The evaluator.")
    progress: Progress | None = Field(default=None, description="How far training is, as the launcher last told.")
    progress_summary: str = Field(default="", description="The same in a few characters.")
    start: StartStatus | None = Field(
        default=None, description="Where the start of an attempt went: the last one's that began."
    )
    failure: Failure | None = Field(
        default=None, description="First failure of the last attempt that failed. It outlives its pod."
    )

    template: TemplateStatus | None = Field(default=None, description="The template that the job was accepted with.")
    ledger: Ledger = Field(
        default=Ledger(), description="The operator's own notes on a job's past; of no interest to users."
    )

    def noted(self, **changes: Any) -> JobStatus:
        """This status with `changes` of its ledger; itself where nothing changes."""
        if all(getattr(self.ledger, name) == value for name, value in changes.items()):
            return self
        return self.model_copy(update={"ledger": self.ledger.model_copy(update=changes)})

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of this type, if there is one."""
        for one in self.conditions:
            if one.type == kind:
                return one
        return None

    def is_true(self, kind: ConditionType) -> bool:
        """Whether the condition of this type holds."""
        found = self.condition(kind)
        return found is not None and found.status == "True"

    @property
    def finished(self) -> bool:
        """Whether the job has ended; that never changes back."""
        return self.is_true("Succeeded") or self.is_true("Failed")


ORDER: tuple[ConditionType, ...] = get_args(ConditionType)


@dataclass(frozen=True)
class ConditionChange:
    """A condition to set."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    message: str = ""


def with_conditions(
    status: JobStatus, changes: tuple[ConditionChange, ...], generation: int, now: datetime
) -> JobStatus:
    """`status` with each condition of `changes` set; of two for one type the later one counts."""
    conditions: dict[ConditionType, Condition] = {c.type: c for c in status.conditions}
    for one in changes:
        before = status.condition(one.type)
        said: dict[str, Any] = {"reason": one.reason, "message": one.message, "observed_generation": generation}
        if before is not None and before.status == one.status:
            conditions[one.type] = before.model_copy(update=said)
        else:
            conditions[one.type] = Condition(type=one.type, status=one.status, last_transition_time=now, **said)
    return status.model_copy(update={"conditions": tuple(conditions[t] for t in ORDER if t in conditions)})


def parse_status(raw: Mapping[str, Any] | None) -> JobStatus:
    """The status that an object carries; an absent one is an empty one."""
    return JobStatus.model_validate(dict(raw or {}))


def dump_status(status: JobStatus) -> dict[str, Any]:
    """`status` as it is written to the API, without empty optional fields."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
