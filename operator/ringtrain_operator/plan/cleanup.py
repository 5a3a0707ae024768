"""runPolicy.cleanPodPolicy: which pods of a finished job are deleted."""

from __future__ import annotations

from datetime import datetime, timedelta

from ..observe import PodView
from ..status import JobStatus
from ..status.situation import Situation
from . import active_deadline

# How long a finished gang's pods have to end by themselves before they count as still running.
SETTLE_S = 10


def unwanted_pods(s: Situation) -> tuple[tuple[PodView, ...], datetime | None]:
    """Pods of a finished job to delete now, and when to look again."""
    policy = s.job.spec.run_policy.clean_pod_policy
    if policy == "All":
        return s.observed.pods, None
    running = tuple(pod for pod in s.pods if pod.phase not in ("Succeeded", "Failed"))
    if _deadline_exceeded(s.status):
        # Its pods would go on training for a job that has failed; the policy is about what ended by itself.
        return s.stale_pods + running, None
    if policy == "None" or not running:
        return s.stale_pods, None
    settled = (s.status.completion_time or s.now) + timedelta(seconds=SETTLE_S)
    if s.now < settled:
        return s.stale_pods, settled
    return s.stale_pods + running, None


def _deadline_exceeded(status: JobStatus) -> bool:
    failed = status.condition("Failed")
    return failed is not None and failed.reason == active_deadline.REASON
