"""Pods in numbers: replicaStatuses, the scale subresource, the Workers column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..build import worker_selector
from ..observe.model import PodView
from .model import ReplicaStatus, ReplicaStatuses
from .situation import Situation


def counts(s: Situation, ended: bool) -> dict[str, Any]:
    """Fields of the status that count pods. What a finished job's deleted pods had become stays counted.

    `ended`: whether the job has ended by now; it wants no workers then, and "0/2" would look like trouble.
    """
    launchers = [s.launcher] if s.launcher is not None else []
    before = s.status.replica_statuses if s.status.finished else ReplicaStatuses()
    workers = _replica_status(s.workers, before.worker)
    return {
        "replicas": len(s.workers),
        "selector": worker_selector(s.job),
        "workers": "-" if ended else f"{workers.ready}/{s.job.num_workers}",
        "replica_statuses": ReplicaStatuses(launcher=_replica_status(launchers, before.launcher), worker=workers),
    }


def counted(number: int, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _replica_status(pods: Sequence[PodView], before: ReplicaStatus) -> ReplicaStatus:
    succeeded = sum(pod.finished and pod.phase != "Failed" and pod.exit_code in (0, None) for pod in pods)
    failed = sum(pod.finished for pod in pods) - succeeded
    active = [pod for pod in pods if not pod.finished and pod.deletion_time is None]
    return ReplicaStatus(
        active=len(active),
        ready=sum(pod.phase == "Running" and pod.ready for pod in active),
        succeeded=max(succeeded, before.succeeded),
        failed=max(failed, before.failed),
    )
