"""Objects of a job to create and to delete, derived from a status that already includes the decision."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from .. import build
from ..build import BuildSettings
from ..build.names import ObjectRef
from ..contract import KIND
from ..observe.model import PodView
from ..spec.job import Job
from ..status.situation import Situation
from ..workers.auxiliary import missing_auxiliary_pods, unwanted_auxiliary_pods
from ..workers.gang import missing_pods, one_pod_of_each
from ..workers.replacing import missing_elastic_pods, unwanted_elastic_pods
from .cleanup import force_time, job_expiry, pod_deletion, unwanted_pods
from .result import PlannedDeletion

# A suspended job's launcher ends when it has registered the workers' end. One that hangs is deleted after this time, or
# after the workers' grace period.
LAUNCHER_ENDS_S = 30


@dataclass(frozen=True)
class PlannedChanges:
    """Objects of a job to create and to delete, and the time of the next reconcile."""

    create: tuple[dict[str, Any], ...] = ()
    delete: tuple[PlannedDeletion, ...] = ()
    requeue_at: datetime | None = None


def plan_changes(s: Situation, settings: BuildSettings) -> PlannedChanges:
    """Return the objects to create and to delete, so that those exist which the status requires."""
    found = _planned_changes(s, settings)
    unwanted = (PlannedDeletion(ref, uid) for placement in s.placements for ref, uid in placement.unwanted())
    return replace(found, delete=(*found.delete, *unwanted))


def _planned_changes(s: Situation, settings: BuildSettings) -> PlannedChanges:
    if s.finished:
        return _changes_when_finished(s)
    if s.is_without_pods:
        return _changes_when_suspended(s)
    if s.stale_pods:
        return _planned_deletions(s, (*s.stale_pods, *unwanted_auxiliary_pods(s)), None)
    if s.status.ledger.queued_since is not None:  # without any pods
        return _planned_deletions(s, s.auxiliary_pods, None)
    stray = unwanted_auxiliary_pods(s)
    deletions = _planned_deletions(s, stray, None)
    if s.observed.foreign or s.queue.holds or s.gang.holds:
        return deletions
    start = s.status.ledger.restart_not_before
    if start is not None and s.now < start:
        return replace(deletions, requeue_at=_earliest_requeue(deletions.requeue_at, start))
    if s.provisioning.holds:
        return replace(deletions, create=s.provisioning.missing(one_pod_of_each(s, settings)))
    auxiliary = tuple(missing_auxiliary_pods(s, settings))
    elastic = s.job.spec.elastic is not None
    missing = missing_elastic_pods(s, settings) if elastic else missing_pods(s, settings)
    gang = (s.provisioning.marked(s.gang.marked(s.queue.marked(pod))) for pod in missing)
    queued = (s.queue.marked(pod) for pod in auxiliary)
    made = (*_companion_objects(s, settings), *s.gang.missing(), *gang, *queued)
    return replace(_planned_deletions(s, (*(unwanted_elastic_pods(s) if elastic else ()), *stray), None), create=made)


def _changes_when_suspended(s: Situation) -> PlannedChanges:
    """Return the objects to delete, so that a suspended or queued job has no pods.

    A running launcher is deleted last, after a delay. In this time it collects the ranks' last lines and may end by
    itself, with a result that the operator has not observed yet. That result then counts.
    """
    launcher = s.launcher
    condition = s.status.condition("Suspended" if s.is_suspended else "Queued")
    if condition is None or launcher is None or launcher.finished or launcher.phase != "Running":
        return _planned_deletions(s, s.observed.pods, None)
    due = condition.last_transition_time + timedelta(seconds=max(LAUNCHER_ENDS_S, s.job.spec.worker.grace_s))
    if s.now >= due:
        return _planned_deletions(s, s.observed.pods, None)
    return _planned_deletions(s, tuple(pod for pod in s.observed.pods if pod is not launcher), due)


def companion_refs(job: Job) -> tuple[ObjectRef, ...]:
    """Return references to the job's Service and other objects, except for pods and the Secret."""
    return tuple(ObjectRef(kind, job.name) for kind in ("Service", "ServiceAccount", "NetworkPolicy"))


def _changes_when_finished(s: Situation) -> PlannedChanges:
    expires = job_expiry(s)
    if expires is not None and s.now >= expires:
        return PlannedChanges(delete=(PlannedDeletion(ObjectRef(KIND, s.job.name), s.job.uid),))
    pods, requeue_at = unwanted_pods(s)
    return _planned_deletions(s, pods, _earliest_requeue(expires, requeue_at))


def _planned_deletions(s: Situation, pods: tuple[PodView, ...], requeue_at: datetime | None) -> PlannedChanges:
    deletions = tuple(d for d in (pod_deletion(pod, s.now) for pod in pods) if d is not None)
    forced = (force_time(pod) for pod in pods)
    return PlannedChanges(
        delete=deletions, requeue_at=_earliest_requeue(requeue_at, *(t for t in forced if t and t > s.now))
    )


def _companion_objects(s: Situation, settings: BuildSettings) -> tuple[dict[str, Any], ...]:
    job = s.job
    builders: dict[str, Callable[[], dict[str, Any]]] = {
        "Service": lambda: build.build_service(job, settings),
        "ServiceAccount": lambda: build.build_service_account(job, settings),
        "NetworkPolicy": lambda: build.build_network_policy(job, settings),
    }
    made = tuple(builders[ref.kind]() for ref in companion_refs(job) if ref not in s.observed.objects)
    # The Secret may exist although this process has no record of its creation.
    if s.secret_is_ours or s.secret in s.observed.objects:
        return made
    return (build.build_secret(job, settings.issue(job, s.now), s.status.ledger.credentials), *made)


def _earliest_requeue(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment is not None), default=None)
