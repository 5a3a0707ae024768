"""Which objects must exist now and which must not, given a status whose decisions are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from .. import build
from ..build import Settings
from ..build.names import ObjectRef
from ..contract import KIND
from ..observe.model import PodView
from ..spec.job import Job
from ..status.incarnations import avoided_nodes, incarnations_of, number_of
from ..status.situation import Situation
from .cleanup import deletion, expiry, force_time, unwanted_pods
from .incarnations import due_workers, unwanted_workers
from .lasting import due_lasting, unwanted_lasting
from .relaunch import is_unwanted, launcher_due
from .result import Deletion

# A suspended job's launcher ends as soon as it has taken note of the workers' end. One that hangs is deleted after
# so long, or after the workers' grace period.
LAUNCHER_ENDS_S = 30


@dataclass(frozen=True)
class Changes:
    """Objects to create and to delete, and when to look again."""

    create: tuple[dict[str, Any], ...] = ()
    delete: tuple[Deletion, ...] = ()
    requeue_at: datetime | None = None


def changes(s: Situation, settings: Settings) -> Changes:
    """What separates what exists from what the status says should."""
    found = _changes(s, settings)
    unwanted = (Deletion(ref, uid) for placement in s.placements for ref, uid in placement.unwanted())
    return replace(found, delete=(*found.delete, *unwanted))


def _changes(s: Situation, settings: Settings) -> Changes:
    if s.status.finished:
        return _finished(s)
    if s.is_without_pods:
        return _suspended(s)
    if s.stale_pods:
        return _delete(s, (*s.stale_pods, *unwanted_lasting(s)), None)
    if s.status.ledger.queued_since is not None:  # without any pods
        return _delete(s, s.lasting_pods, None)
    kept = _delete(s, unwanted_lasting(s), None)
    if s.observed.foreign or s.queue.holds or s.gang.holds:
        return kept
    start = s.status.ledger.restart_not_before
    if start is not None and s.now < start:
        return replace(kept, requeue_at=_earliest(kept.requeue_at, start))
    if s.provisioning.holds:
        return replace(kept, create=s.provisioning.missing(_one_of_each(s, settings)))
    gang = (s.provisioning.marked(s.gang.marked(s.queue.marked(pod))) for pod in _missing_pods(s, settings))
    beside = (s.queue.marked(pod) for pod in _missing_lasting(s, settings))
    made = (*_companions(s, settings), *s.gang.missing(), *gang, *beside)
    launchers = tuple(pod for pod in s.pods if is_unwanted(s, pod))
    return replace(_delete(s, (*launchers, *unwanted_workers(s), *unwanted_lasting(s)), None), create=made)


def _suspended(s: Situation) -> Changes:
    """No pods, while suspended and in a queue. A launcher that runs is left to end by itself for a while: it
    gathers the ranks' last lines, and if the job has ended meanwhile, which nobody may have seen yet, its end
    counts, and its logs stay."""
    launcher = s.launcher
    condition = s.status.condition("Suspended" if s.status.is_true("Suspended") else "Queued")
    if condition is None or launcher is None or launcher.finished or launcher.phase != "Running":
        return _delete(s, s.observed.pods, None)
    due = condition.last_transition_time + timedelta(seconds=max(LAUNCHER_ENDS_S, s.job.spec.worker.grace_s))
    if s.now >= due:
        return _delete(s, s.observed.pods, None)
    return _delete(s, tuple(pod for pod in s.observed.pods if pod is not launcher), due)


def companion_refs(job: Job) -> tuple[ObjectRef, ...]:
    """What a job has besides pods and its Secret, whose name depends on what is taken."""
    return tuple(ObjectRef(kind, job.name) for kind in ("Service", "ServiceAccount", "NetworkPolicy"))


def _finished(s: Situation) -> Changes:
    expires = expiry(s)
    if expires is not None and s.now >= expires:
        return Changes(delete=(Deletion(ObjectRef(KIND, s.job.name), s.job.uid),))
    pods, requeue_at = unwanted_pods(s)
    return _delete(s, pods, _earliest(expires, requeue_at))


def _delete(s: Situation, pods: tuple[PodView, ...], requeue_at: datetime | None) -> Changes:
    deletions = tuple(d for d in (deletion(pod, s.now) for pod in pods) if d is not None)
    forced = (force_time(pod) for pod in pods)
    return Changes(delete=deletions, requeue_at=_earliest(requeue_at, *(t for t in forced if t and t > s.now)))


def _companions(s: Situation, settings: Settings) -> tuple[dict[str, Any], ...]:
    job = s.job
    builders: dict[str, Callable[[], dict[str, Any]]] = {
        "Service": lambda: build.build_service(job, settings),
        "ServiceAccount": lambda: build.build_service_account(job, settings),
        "NetworkPolicy": lambda: build.build_network_policy(job, settings),
    }
    made = tuple(builders[ref.kind]() for ref in companion_refs(job) if ref not in s.observed.objects)
    # Whether this process remembers it or not.
    if s.secret_is_ours or s.secret in s.observed.objects:
        return made
    return (build.build_secret(job, settings.issue(job, s.now), s.status.ledger.credentials), *made)


def _missing_pods(s: Situation, settings: Settings) -> tuple[dict[str, Any], ...]:
    if s.job.spec.elastic is not None:
        return _missing_elastic_pods(s, settings)
    missing = set(s.missing_names)
    indices = (i for i in range(s.status.ledger.attempt_workers) if build.worker_name(s.job, i) in missing)
    secret = s.secret.name
    workers = (build.build_worker_pod(s.job, s.attempt, index, secret, settings=settings) for index in indices)
    if build.launcher_name(s.job) not in missing:
        return tuple(workers)
    return (build.build_launcher_pod(s.job, s.attempt, secret, settings), *workers)


def _one_of_each(s: Situation, settings: Settings) -> dict[str, dict[str, Any]]:
    """The launcher's pod and a worker's, for an autoscaler to weigh."""
    secret = s.secret.name
    return {
        "launcher": s.gang.marked(build.build_launcher_pod(s.job, s.attempt, secret, settings)),
        "workers": s.gang.marked(build.build_worker_pod(s.job, s.attempt, 0, secret, settings=settings)),
    }


def _missing_lasting(s: Situation, settings: Settings) -> Iterator[dict[str, Any]]:
    due = set(due_lasting(s))
    for index in range(s.wanted_data_workers):
        if build.data_worker_name(s.job, index) in due:
            yield build.build_data_worker_pod(s.job, index, s.secret.name, settings)
    if s.job.spec.evaluator is not None and build.evaluator_name(s.job) in due:
        yield build.build_evaluator_pod(s.job, s.status.ledger.attempt_workers, settings)


def _missing_elastic_pods(s: Situation, settings: Settings) -> tuple[dict[str, Any], ...]:
    notes, secret = incarnations_of(s.status), s.secret.name
    avoided = avoided_nodes(notes.losses, s.now)
    workers = (
        build.build_worker_pod(
            s.job,
            s.attempt,
            index,
            secret,
            build.Incarnation(number_of(s.status, index), avoided),
            settings=settings,
        )
        for index in due_workers(s)
    )
    if not launcher_due(s):
        return tuple(workers)
    known = s.status.elastic.formation if s.status.elastic is not None else 0
    number = build.Incarnation(notes.launcher, formation=known)
    return (build.build_launcher_pod(s.job, s.attempt, secret, settings, number), *workers)


def _earliest(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment is not None), default=None)
