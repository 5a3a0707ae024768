"""Deletion of finished jobs and of their pods (cleanPodPolicy, ttlSecondsAfterFinished), also on dead nodes."""

from datetime import datetime, timedelta

from ..observe.model import PodView
from ..status.model import JobStatus
from ..status.situation import Situation
from ..workers.auxiliary import evaluator_deadline
from .deadlines import DEADLINE_EXCEEDED, PROGRESS_EXCEEDED
from .result import PlannedDeletion

# Time that a finished gang's pods have to end by themselves before they count as running.
SETTLE_S = 10
# Minimum time for the launcher of a job that exceeded its deadline to collect the last lines of its workers and to end.
# Workers have at least their grace period, in which ranks save.
DRAIN_S = 60
# Counted from the deletionTimestamp, which includes the grace period, of a pod on a dead node.
FORCE_AFTER_S = 60


def job_expiry(s: Situation) -> datetime | None:
    """Return when to delete a finished job (ttlSecondsAfterFinished), not before the evaluator's deadline.

    Returns None if the job has not finished or is never deleted.
    """
    ttl = s.job.spec.run_policy.ttl_seconds_after_finished
    if ttl is None or s.status.completion_time is None:
        return None
    expires = s.status.completion_time + timedelta(seconds=ttl)
    return max(expires, evaluator_deadline(s) or expires)


def force_time(pod: PodView) -> datetime | None:
    """Return when to force the deletion of a pod that terminates on a dead node; None for any other pod.

    The kubelet of a dead node cannot confirm that the pod has ended.
    """
    dead = (
        pod.place.node_ready is False
        or pod.state.reason == "NodeLost"
        or pod.disrupted.reason == "DeletionByTaintManager"
    )
    if pod.deletion_time is None or not dead:
        return None
    return pod.deletion_time + timedelta(seconds=FORCE_AFTER_S)


def pod_deletion(pod: PodView, now: datetime) -> PlannedDeletion | None:
    """Return a deletion of `pod`. If the pod is being deleted already, return a forced deletion from `force_time` on.

    Before that time, or if the pod has no such time, return None. A pod whose containers have all ended is deleted at
    once: the kubelet would need two more seconds to confirm their end, for which the next attempt's pod would wait.
    """
    if pod.end.all_ended:
        return PlannedDeletion(pod.ref, pod.id.uid, grace_s=0)
    if pod.deletion_time is None:
        return PlannedDeletion(pod.ref, pod.id.uid)
    due = force_time(pod)
    return PlannedDeletion(pod.ref, pod.id.uid, grace_s=0) if due is not None and now >= due else None


def unwanted_pods(s: Situation) -> tuple[tuple[PodView, ...], datetime | None]:
    """Return the pods of a finished job to delete now, and the time of the next reconcile."""
    gang, gang_at = _unwanted_gang(s)
    until = evaluator_deadline(s)
    goes_on = until is not None and s.now < until
    every = s.job.spec.run_policy.clean_pod_policy == "All"
    # Independent of the policy: auxiliary pods do not end when the training ends.
    auxiliary = (
        pod for pod in s.auxiliary_pods if (every or not pod.finished) and not (goes_on and pod.id.role == "evaluator")
    )
    moments = [moment for moment in (gang_at, until if goes_on else None) if moment is not None]
    return (*gang, *auxiliary), min(moments, default=None)


def _unwanted_gang(s: Situation) -> tuple[tuple[PodView, ...], datetime | None]:
    policy = s.job.spec.run_policy.clean_pod_policy
    if policy == "All":
        return (*s.pods, *s.stale_pods), None
    running = tuple(pod for pod in s.pods if pod.phase not in ("Succeeded", "Failed"))
    if _deadline_exceeded(s.status):
        return _unwanted_after_deadline(s, running)
    if policy == "None":
        # Only a sidecar still runs there, perhaps until it gets SIGTERM.
        running = tuple(pod for pod in running if pod.finished)
    if not running:
        return s.stale_pods, None
    settled = (s.status.completion_time or s.now) + timedelta(seconds=SETTLE_S)
    if s.now < settled:
        return s.stale_pods, settled
    return s.stale_pods + running, None


def _unwanted_after_deadline(s: Situation, running: tuple[PodView, ...]) -> tuple[tuple[PodView, ...], datetime | None]:
    """Return the pods to delete after a job failed at its deadline, namely all that run, and the time of the next
    reconcile.

    Workers would otherwise continue training. The launcher ends after its workers, and its pod stays, because it may
    have the only copy of their output.
    """
    drain_s = max(DRAIN_S, s.job.spec.worker.grace_s + SETTLE_S)
    ends = (s.status.completion_time or s.now) + timedelta(seconds=drain_s)
    launcher_ends = s.launcher is not None and s.launcher.phase == "Running" and s.now < ends
    unwanted = tuple(pod for pod in running if not (launcher_ends and pod.id.role == "launcher"))
    return s.stale_pods + unwanted, ends if launcher_ends else None


def _deadline_exceeded(status: JobStatus) -> bool:
    """Return whether a deadline ended the job while its ranks ran."""
    failed, failure = status.condition("Failed"), status.failure
    reasons = (failed.reason if failed is not None else "", failure.reason if failure is not None else "")
    return failed is not None and not {DEADLINE_EXCEEDED, PROGRESS_EXCEEDED}.isdisjoint(reasons)
