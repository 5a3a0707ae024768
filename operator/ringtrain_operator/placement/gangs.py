"""One group an attempt: what a gang scheduler is given so that it places all pods of the attempt or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..build import names
from ..spec.job import Job
from .base import Gang, GangScheduler
from .coscheduling import COSCHEDULING
from .kubernetes import KUBERNETES
from .volcano import VOLCANO

__all__ = ["DEFAULT_SCHEDULER", "SCHEDULERS", "build_group", "group_name", "in_group", "scheduler_of"]

Json = dict[str, Any]

# By their names in spec.scheduling.gang, in the order in which Auto takes them.
SCHEDULERS: Mapping[str, GangScheduler] = {
    "Kubernetes": KUBERNETES,
    "Coscheduling": COSCHEDULING,
    "Volcano": VOLCANO,
}
DEFAULT_SCHEDULER = "default-scheduler"


def group_name(job: Job, attempt: int) -> str:
    """Name of the attempt's group; no other job has it, and no other attempt."""
    return names.group_name(job.name, job.uid, attempt)


def scheduler_of(job: Job) -> str:
    """schedulerName of the worker's template; empty: it names none."""
    return str((job.spec.worker.template.get("spec") or {}).get("schedulerName") or "")


def build_group(job: Job, attempt: int, scheduler: str, api_version: str, min_pods: int) -> Json:
    """The attempt's PodGroup, as gang scheduler `scheduler` knows it in `api_version`."""
    template = (job.spec.worker.template.get("spec") or {}).get("priorityClassName")
    wanted = job.spec.scheduling
    gang = Gang(
        name=group_name(job, attempt),
        min_pods=min_pods,
        queue=job.volcano_queue,
        priority_class=template or wanted.priority_class_name or "",
        topology=wanted.topology,
    )
    return {
        "apiVersion": api_version,
        "kind": "PodGroup",
        "metadata": names.metadata(job, gang.name, names.job_labels(job)),
        "spec": SCHEDULERS[scheduler].spec(gang),
    }


def in_group(job: Job, pod: Json, attempt: int, scheduler: str, scheduler_name: str) -> Json:
    """The pod as one of the attempt's group. `scheduler_name`: who places it, unless a template says who."""
    SCHEDULERS[scheduler].join(pod, group_name(job, attempt))
    who = scheduler_of(job) or scheduler_name
    if who and not pod["spec"].get("schedulerName"):
        pod["spec"]["schedulerName"] = who
    return pod
