"""`status.ledger`: numbers and times that the operator records to decide later."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from pydantic import Field

from ..spec.base import StatusModel, Time


class Loss(StatusModel):
    """A pod of an elastic job that was lost."""

    worker: int | None = Field(default=None, description="Index of the lost worker; absent for the launcher.")
    pod: str = Field(description="Name of the lost pod.")
    incarnation: int = Field(description="Number of the lost pod among the pods of the same name, from 1.")
    attempt: int = Field(description="Attempt in which the pod was lost.")
    node: str | None = Field(default=None, description="Node of the lost pod.")
    cause: str = Field(description="Cause of the loss as a sentence.")
    failed: bool = Field(default=False, description="Whether the pod ended by itself instead of being removed.")
    suspect: bool = Field(default=False, description="Whether the pod's node may be the cause of the loss.")
    time: Time = Field(description="Time at which the operator observed the loss.")


class Incarnations(StatusModel):
    """Numbers of the successive pods of each worker. A number is stored before its pod is created."""

    numbers: tuple[int, ...] = Field(
        default=(), description="Number of each worker's last pod, counted from 1; 0 before the first pod."
    )
    present: tuple[bool, ...] = Field(
        default=(),
        description="Whether each worker's last pod was observed alive. Such a pod is lost once it is no longer "
        "observed.",
    )
    joined: tuple[bool, ...] = Field(
        default=(),
        description="Whether the agent in each worker's last pod has registered; before, its silence is not a loss.",
    )
    losses: tuple[Loss, ...] = Field(default=(), description="The most recent losses of pods.")
    launcher: int = Field(
        default=0, description="Number of the launcher's last pod, counted from 1; 0 before the first pod."
    )
    launcher_present: bool = Field(default=False, description="Whether the launcher's last pod was observed alive.")
    launcher_lost: Time | None = Field(
        default=None, description="Time since which no launcher knows the attempt's world."
    )
    lost_steps: int = Field(default=0, description="Number of lost steps that earlier launchers counted.")
    recoveries: int = Field(default=0, description="Number of recoveries that earlier launchers counted.")


# Losses older than this do not affect the backoff.
REMEMBERED_S = 3600
LONGEST_PAUSE_S = 300


def next_pod_time(last: datetime, losses: int) -> datetime | None:
    """Return when the next pod of the same name may be created; None if at once.

    `losses` counts losses that each followed another within an hour, the last one at `last`. The first loss causes no
    delay; from the second on the delay doubles.
    """
    return None if losses < 2 else last + timedelta(seconds=min(2 ** min(losses - 2, 30), LONGEST_PAUSE_S))


class EndedPod(StatusModel):
    """A pod that ended by itself. It is recorded before the pod is deleted, so that it counts once."""

    pod: str = Field(description="Name of the ended pod.")
    uid: str = Field(description="Uid of the ended pod. Its replacement has the same name and another uid.")
    node: str | None = Field(default=None, description="Node of the ended pod.")
    cause: str = Field(description="Cause of the pod's end as a sentence.")
    failures: int = Field(
        default=0, description="Number of failed pods with this name, each within an hour of the previous one."
    )
    evaluator: bool = Field(default=False, description="Whether the pod was the evaluator.")
    done: bool = Field(default=False, description="Whether the pod was an evaluator that succeeded.")
    time: Time = Field(description="Time at which the operator observed the pod's end.")

    @property
    def next_at(self) -> datetime | None:
        """Time at which the next pod of this name may be created; None if at once."""
        return next_pod_time(self.time, self.failures)


class DataScale(StatusModel):
    """Number of data workers that autoscale wants, and the measurements behind it."""

    replicas: int = Field(description="Number of data workers that the job needs now.")
    asked: int = Field(description="Value of dataWorkers.replicas when autoscaling started.")
    workers: int = Field(description="Number of workers in the world in which the waiting times were measured.")
    too_few: int = Field(default=0, description="Largest number of data workers with which ranks waited too long.")
    above_since: Time | None = Field(
        default=None, description="Time since which ranks wait for input so long that more data workers are needed."
    )
    below_since: Time | None = Field(
        default=None, description="Time since which ranks wait so little that fewer data workers would do."
    )


class LostPod(StatusModel):
    """A pod that no longer answers. It is not known yet whether its node is at fault."""

    uid: str = Field(description="Uid of the silent pod.")
    pod: str = Field(description="Name of the silent pod.")
    node: str | None = Field(default=None, description="Node of the silent pod.")
    since: Time = Field(description="Time at which the pod last answered.")


class Ledger(StatusModel):
    """Internal state of the operator about the job's past, on which it bases decisions. Not for users."""

    attempt_workers: int = Field(default=0, description="Number of workers of the current attempt.")
    credentials: int = Field(default=0, description="Number in the name of the Secret that the job's pods mount.")
    credentials_mounted: int | None = Field(
        default=None,
        description="Number in the name of the last Secret that pods mounted, so that it is certain that the job owns "
        "it.",
    )
    restart_not_before: Time | None = Field(
        default=None, description="Time before which the current attempt's pods are not created."
    )
    restart_delay_seconds: int = Field(default=0, description="Delay before the last restart, in seconds.")
    active_since: Time | None = Field(
        default=None, description="Time from which runPolicy.activeDeadlineSeconds counts."
    )
    active_seconds: int = Field(
        default=0, description="Seconds for which the job was active before the last suspension."
    )
    begun_with: str | None = Field(
        default=None,
        description="Digest of the fields that can change only while suspended, as of the last start or queueing.",
    )
    has_run: bool = Field(
        default=False,
        description="Whether all pods of an attempt have run. Before that all fields of the spec may change.",
    )
    queued_as: Literal["Workload", "PodGroup"] | None = Field(
        default=None,
        description="Kind of object by which Kueue manages the job or its attempt; absent if Kueue manages neither.",
    )
    gang_scheduler: Literal["Kubernetes", "Coscheduling", "Volcano"] | None = Field(
        default=None,
        description="Gang scheduler that places the pods of the attempt; absent if no gang scheduler does.",
    )
    incarnations: Incarnations | None = Field(
        default=None,
        description="Number of the newest pod of each worker in an elastic job, and what is known about these pods.",
    )
    ended_pods: tuple[EndedPod, ...] = Field(
        default=(), description="Last pod that has ended, of each data worker and of the evaluator."
    )
    data_scale: DataScale | None = Field(
        default=None,
        description="Number of data workers that autoscaling requests, and the measurements on which it is based.",
    )
    lost_pod: LostPod | None = Field(
        default=None,
        description="Pod that was silent at the last restart. The restart counts unless the pod's node is at fault.",
    )
    line_since: Time | None = Field(
        default=None,
        description="Time that sorts the job among the jobs that wait for all their pods to be placed; the earliest is "
        "first.",
    )
    waits_since: Time | None = Field(
        default=None,
        description="Time at which the job began to wait for all its pods to be placed; lineSince may be later.",
    )
    line_wants: dict[str, int] = Field(
        default={},
        description="Resources that the job competes for: each worker's devices by name, and `room` for "
        "other resources.",
    )
    line_workers: int = Field(default=0, description="Number of workers with which the job can start.")
    line_reserves: bool = Field(
        default=False, description="Whether jobs behind this job in the queue must leave resources to this job."
    )
    refused_since: Time | None = Field(
        default=None, description="Time since which the API refuses some of the current attempt's pods."
    )
    refused: str = Field(
        default="",
        description="Message of the API or a kubelet because of which the job waits without pods for another try.",
    )
    queued_since: Time | None = Field(default=None, description="Time since which the job waits without pods.")
    too_large: bool = Field(
        default=False, description="Whether the job waits for nodes that the cluster does not have."
    )
