"""Pods and jobs that are over: cleanPodPolicy, ttlSecondsAfterFinished, pods that stay Terminating."""

from datetime import datetime, timedelta

from ..observe.model import PodView
from ..status.model import JobStatus
from ..status.situation import Situation
from ..workers.lasting import evaluator_until
from .deadlines import DEADLINE_EXCEEDED
from .result import PlannedDeletion

# How long a finished gang's pods have to end by themselves before they count as still running.
SETTLE_S = 10
# How long at least the launcher of a job that was out of time has to take in the last lines of its workers, and to
# end. Workers may take their grace period, in which ranks save.
DRAIN_S = 60
# After the grace period of a pod whose node is dead (its deletionTimestamp includes that).
FORCE_AFTER_S = 60


def job_expiry(s: Situation) -> datetime | None:
    """When a finished job is to be deleted, with all it owns (ttlSecondsAfterFinished); None: never.

    Not before its evaluator has had its time.
    """
    ttl = s.job.spec.run_policy.ttl_seconds_after_finished
    if ttl is None or s.status.completion_time is None:
        return None
    expires = s.status.completion_time + timedelta(seconds=ttl)
    return max(expires, evaluator_until(s) or expires)


def force_time(pod: PodView) -> datetime | None:
    """When a Terminating pod may be deleted by force: nobody is left on a dead node to say that it ended.

    None while its node may still be ending it.
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
    """How to get rid of `pod`: ask, force, or (None) wait."""
    if pod.deletion_time is None:
        return PlannedDeletion(pod.ref, pod.id.uid)
    due = force_time(pod)
    return PlannedDeletion(pod.ref, pod.id.uid, grace_s=0) if due is not None and now >= due else None


def unwanted_pods(s: Situation) -> tuple[tuple[PodView, ...], datetime | None]:
    """Pods of a finished job to delete now, and when to look again."""
    gang, gang_at = _unwanted_gang(s)
    until = evaluator_until(s)
    goes_on = until is not None and s.now < until
    every = s.job.spec.run_policy.clean_pod_policy == "All"
    # Whatever the policy: none of them ends by itself because the training has.
    beside = (
        pod for pod in s.lasting_pods if (every or not pod.finished) and not (goes_on and pod.id.role == "evaluator")
    )
    moments = [moment for moment in (gang_at, until if goes_on else None) if moment is not None]
    return (*gang, *beside), min(moments, default=None)


def _unwanted_gang(s: Situation) -> tuple[tuple[PodView, ...], datetime | None]:
    policy = s.job.spec.run_policy.clean_pod_policy
    if policy == "All":
        return (*s.pods, *s.stale_pods), None
    running = tuple(pod for pod in s.pods if pod.phase not in ("Succeeded", "Failed"))
    if _deadline_exceeded(s.status):
        return _out_of_time(s, running)
    if policy == "None" or not running:
        return s.stale_pods, None
    settled = (s.status.completion_time or s.now) + timedelta(seconds=SETTLE_S)
    if s.now < settled:
        return s.stale_pods, settled
    return s.stale_pods + running, None


def _out_of_time(s: Situation, running: tuple[PodView, ...]) -> tuple[tuple[PodView, ...], datetime | None]:
    """Whatever the policy: workers would go on training for a job that has failed.

    The launcher ends when its workers do, and its pod stays: it has their output, and nothing else may have.
    """
    drain_s = max(DRAIN_S, s.job.spec.worker.grace_s + SETTLE_S)
    ends = (s.status.completion_time or s.now) + timedelta(seconds=drain_s)
    launcher_ends = s.launcher is not None and s.launcher.phase == "Running" and s.now < ends
    unwanted = tuple(pod for pod in running if not (launcher_ends and pod.id.role == "launcher"))
    return s.stale_pods + unwanted, ends if launcher_ends else None


def _deadline_exceeded(status: JobStatus) -> bool:
    failed = status.condition("Failed")
    return failed is not None and failed.reason == DEADLINE_EXCEEDED
