"""Losses of an elastic job's pods, and their replacement within the attempt.

A pod's number is written into the status before the pod is created, and its first observation alive is written, too. So
a pod that was observed and does not exist any more was lost. A pod that was never observed may never have been created:
a restarted operator gives its replacement a new number and records no loss. A scale-down is written before a pod is
deleted for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from .. import build
from ..build import BuildSettings
from ..contract import EXIT_GANG_STOPPED
from ..observe.model import PodView
from ..observe.pods import by_index
from ..status.decision import Decision, Policy
from ..status.ledger import Incarnations, Loss
from ..status.model import JobStatus
from ..status.situation import Situation
from .gang import LAUNCHER_REPORT_S, gang_pod_disruption, is_node_suspect
from .incarnations import (
    MAX_LOSSES,
    avoided_nodes,
    has_joined,
    incarnations_of,
    is_recording_over,
    is_worker_present,
    loss_record,
    next_creation_time,
    worker_incarnation_number,
)
from .launcher_pod import is_attempt_ending, is_launcher_due, is_unwanted_launcher, may_create_workers

# Time for a launcher to end after a worker that ended by itself: then the attempt failed, not the worker.
ATTEMPT_ENDS_S = 5


@dataclass(frozen=True)
class _SeenWorkers:
    """Observed workers of an elastic job, as mappings by index, so that a look-up does not search.

    `pods`: each worker's last pod, if it exists. `entries`: the launcher's entry about its agent. `silent`: workers
    whose agents the launcher reports as lost. `refused`: whether the API refused an object that all pods need.
    `refused_pods`: names of refused pods.
    """

    pods: Mapping[int, PodView]
    entries: Mapping[int, Mapping[str, Any]]
    silent: frozenset[int]
    refused: bool
    refused_pods: frozenset[str]

    @classmethod
    def of(cls, s: Situation) -> "_SeenWorkers":
        own = (
            pod
            for pod in reversed(s.workers)
            if pod.id.incarnation == worker_incarnation_number(s.status, pod.id.index)
        )
        entries = by_index(s.report.workers if s.report else (), s.status.ledger.attempt_workers)
        refused = [refusal.ref for refusal in s.observed.refusals]
        return cls(
            pods={pod.id.index: pod for pod in own},
            entries=entries,
            silent=frozenset(index for index, worker in entries.items() if worker.get("lost") is True),
            refused=any(ref.kind != "Pod" for ref in refused),
            refused_pods=frozenset(ref.name for ref in refused if ref.kind == "Pod"),
        )


def record_workers(s: Situation, decision: Decision | None) -> JobStatus:
    """Record lost worker pods in status.ledger, and the numbers of the pods that are created in this reconcile.

    `decision`: this round's decision; `s.status` already has its ledger entries but not its condition.
    """
    if is_recording_over(s, decision):
        return s.status
    losses = list(incarnations_of(s.status).losses)
    seen = _SeenWorkers.of(s)
    size = max(s.status.ledger.attempt_workers, len(incarnations_of(s.status).numbers))
    present, joined = [False] * size, [False] * size
    for worker in range(s.status.ledger.attempt_workers):
        pod = seen.pods.get(worker)
        loss = _worker_loss(s, worker, pod, silent=worker in seen.silent)
        if loss is not None and is_worker_present(s.status, worker):
            losses.append(loss)
        present[worker] = loss is None and pod is not None and not _is_recorded_as_lost(s, worker)
        joined[worker] = present[worker] and (has_joined(s.status, worker) or _is_pod_registered(pod, seen))
    updated = _with_incarnations(s, present=tuple(present), joined=tuple(joined), losses=tuple(losses[-MAX_LOSSES:]))
    due = due_workers(replace(s, status=updated))
    numbers = [worker_incarnation_number(s.status, worker) for worker in range(size)]
    for worker in due:
        numbers[worker] += 0 if _was_refused(s, worker, seen) else 1
    return _with_incarnations(replace(s, status=updated), numbers=tuple(numbers))


def due_workers(s: Situation) -> tuple[int, ...]:
    """Return the workers without a pod whose pods can be created now, because no backoff or other wait applies."""
    if not may_create_workers(s):
        return ()
    existing = {pod.id.name for pod in s.observed.pods}
    absent = (w for w in range(s.status.ledger.attempt_workers) if build.worker_name(s.job, w) not in existing)
    return tuple(w for w in absent if (due := next_creation_time(s.status, w)) is None or s.now >= due)


def unwanted_elastic_pods(s: Situation) -> tuple[PodView, ...]:
    """Return pods of the current attempt to delete: lost ones, before new ones are created, and surplus ones."""
    launchers = tuple(pod for pod in s.pods if is_unwanted_launcher(s, pod))
    return (*launchers, *(pod for pod in s.workers if _is_unwanted_worker(s, pod)))


def workers_requeue_times(s: Situation) -> tuple[datetime, ...]:
    """Return the times at which workers' pods may be created again, or count as lost."""
    if s.finished or s.is_without_pods:
        return ()
    pauses = (
        next_creation_time(s.status, worker)
        for worker in range(s.status.ledger.attempt_workers)
        if not is_worker_present(s.status, worker)
    )
    verdicts = (_counts_as_lost_at(s, pod) for pod in s.workers if is_worker_present(s.status, pod.id.index))
    return tuple(moment for moment in (*pauses, *verdicts) if moment is not None and moment > s.now)


def _is_unwanted_worker(s: Situation, pod: PodView) -> bool:
    if pod.id.index >= s.status.ledger.attempt_workers or pod.id.incarnation != worker_incarnation_number(
        s.status, pod.id.index
    ):
        return True
    return not is_worker_present(s.status, pod.id.index)


def _is_recorded_as_lost(s: Situation, worker: int) -> bool:
    """Return whether the worker's last pod is recorded as lost. Then it is deleted even if it answers again."""
    number = worker_incarnation_number(s.status, worker)
    return any((loss.worker, loss.incarnation) == (worker, number) for loss in incarnations_of(s.status).losses)


def _worker_loss(s: Situation, worker: int, pod: PodView | None, *, silent: bool) -> Loss | None:
    """Return a record of the loss of the worker's last pod; None if that pod runs or its state is unknown.

    `silent`: whether the launcher reports the pod's agent as lost.
    """
    if pod is None:
        return loss_record(s, worker, None, "no longer exists")
    disruption = gang_pod_disruption(pod)
    if disruption:
        return loss_record(s, worker, pod, disruption, suspect=is_node_suspect(pod))
    due = _counts_as_lost_at(s, pod)
    if due is not None and s.now >= due:
        why = f" ({pod.end.reason})" if pod.end.reason not in ("", "Error") else ""
        code = (
            f"with exit code {pod.end.code}{why}" if pod.end.code is not None else f"({pod.state.reason or 'Failed'})"
        )
        return loss_record(s, worker, pod, f"ended {code}", failed=True, suspect=True)
    if silent and has_joined(s.status, worker) and not pod.finished:
        return loss_record(s, worker, pod, "was silent, and will be deleted", failed=True, suspect=True)
    return None


def _counts_as_lost_at(s: Situation, pod: PodView) -> datetime | None:
    """Return when a worker's pod that has failed counts as lost; None if it does not count.

    It does not count if the whole attempt has ended: agents end when the launcher ends the attempt, and the launcher
    ends after them.
    """
    if not pod.ended_badly or not s.gang_began or is_attempt_ending(s):
        return None
    wait_s = LAUNCHER_REPORT_S if pod.end.code == EXIT_GANG_STOPPED else ATTEMPT_ENDS_S
    return (pod.end.time or s.now - timedelta(seconds=wait_s)) + timedelta(seconds=wait_s)


def _was_refused(s: Situation, worker: int, seen: _SeenWorkers) -> bool:
    """Return whether the API server refused the newest pod of `worker`, so that the pod was never created."""
    if worker_incarnation_number(s.status, worker) == 0 or is_worker_present(s.status, worker):
        return False
    return seen.refused or build.worker_name(s.job, worker) in seen.refused_pods


def _is_pod_registered(pod: PodView | None, seen: _SeenWorkers) -> bool:
    """Return whether the launcher reports that the agent in this pod (not in an earlier one) has registered."""
    if pod is None:
        return False
    entry = seen.entries.get(pod.id.index, {})
    is_its = entry.get("incarnation", pod.id.incarnation) == pod.id.incarnation
    return entry.get("registered") is True and entry.get("lost") is not True and is_its


def _with_incarnations(s: Situation, **changes: Any) -> JobStatus:
    notes: Incarnations = incarnations_of(s.status).model_copy(update=changes)
    return s.status.with_ledger(incarnations=notes)


def missing_elastic_pods(s: Situation, settings: BuildSettings) -> tuple[dict[str, Any], ...]:
    """Return the launcher's and workers' pods to create now, each with its incarnation (see `PodIncarnation`)."""
    notes, secret = incarnations_of(s.status), s.secret.name
    avoided = avoided_nodes(notes.losses, s.now)
    workers = (
        build.build_worker_pod(
            s.job,
            s.attempt,
            index,
            secret,
            build.PodIncarnation(worker_incarnation_number(s.status, index), avoided),
            settings=settings,
        )
        for index in due_workers(s)
    )
    if not is_launcher_due(s):
        return tuple(workers)
    known = s.status.elastic.formation if s.status.elastic is not None else 0
    number = build.PodIncarnation(notes.launcher, formation=known)
    return (build.build_launcher_pod(s.job, s.attempt, secret, settings, number), *workers)


WORKERS = Policy(record=record_workers, requeue_times=workers_requeue_times, elastic=True)
