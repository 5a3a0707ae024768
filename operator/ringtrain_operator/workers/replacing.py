"""Pods of an elastic job: losses, and replacements within the attempt.

A pod's number is written into the status before the pod is created, and its first observation alive is written, too. So
a pod that was observed and does not exist any more was lost. A pod that was never observed may never have been created:
a restarted operator gives its replacement a new number and records no loss. A scale-down is written before a pod is
deleted for it.

The launcher's pod is replaced in the same way while the gang continues. Ranks train without a launcher, and wait for
one when their world has to change. The new one learns the world from their agents, which wait for it for
networking.startTimeoutSeconds. If none has come by then, or if no worker is left, the gang restarts, which is not
counted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from .. import build
from ..build import RESTARTED_CODES, BuildSettings
from ..build.names import ObjectRef
from ..contract import EXIT_GANG_STOPPED
from ..observe.model import PodView
from ..observe.pods import by_index, termination_of
from ..status.decision import NO_DECISION, Begin, Decision, Enqueue, Finish, Halt, Policy, PolicyResult, Restart
from ..status.model import (
    REMEMBERED_S,
    Incarnations,
    JobStatus,
    Loss,
    next_pod_time,
)
from ..status.situation import Situation
from .gang import LAUNCHER_REPORT_S, gang_pod_disruption, is_node_suspect

# Number of recorded losses: more than are ever counted for one worker or one node.
MAX_LOSSES = 64
# A node with this many losses within REMEMBERED_S is avoided; one or two may be chance.
LOSSES_OF_A_BAD_NODE = 3
# Time for a launcher to end after a worker that ended by itself: then the attempt failed, not the worker.
ATTEMPT_ENDS_S = 5
# Time for a kubelet to restart a killed launcher: its first backoff is 10 s.
LAUNCHER_BACK_S = 60


@dataclass(frozen=True)
class _SeenWorkers:
    """Observation of all workers, by index, so that looking at each costs constant time.

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
    """Record lost worker pods, and the numbers of the pods that are created now.

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


def is_recording_over(s: Situation, decision: Decision | None) -> bool:
    """Return whether pods need no record, because they are deleted or the job has ended."""
    without_pods = s.is_without_pods and not isinstance(decision, Begin)
    over = without_pods or s.finished or isinstance(decision, Halt | Enqueue | Finish)
    return s.attempt == 0 or over


def due_workers(s: Situation) -> tuple[int, ...]:
    """Return the workers whose pods are created now: the pod does not exist, nothing blocks it, and no
    backoff applies.
    """
    if not may_create_workers(s):
        return ()
    existing = {pod.id.name for pod in s.observed.pods}
    absent = (w for w in range(s.status.ledger.attempt_workers) if build.worker_name(s.job, w) not in existing)
    return tuple(w for w in absent if (due := next_creation_time(s.status, w)) is None or s.now >= due)


def unwanted_elastic_pods(s: Situation) -> tuple[PodView, ...]:
    """Return pods of the current attempt to delete: lost ones, whose names are needed, and surplus workers."""
    launchers = tuple(pod for pod in s.pods if _is_unwanted_launcher(s, pod))
    return (*launchers, *(pod for pod in s.workers if _is_unwanted_worker(s, pod)))


def workers_requeue_times(s: Situation) -> tuple[datetime, ...]:
    """Return the times at which workers may be created again or count as lost."""
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
    """Return whether the worker's last pod is recorded as lost. It is deleted even if it answers again."""
    number = worker_incarnation_number(s.status, worker)
    return any((loss.worker, loss.incarnation) == (worker, number) for loss in incarnations_of(s.status).losses)


def _worker_loss(s: Situation, worker: int, pod: PodView | None, *, silent: bool) -> Loss | None:
    """Return the loss of the worker's last pod; None while it lives, or while its state is unknown."""
    if pod is None:
        return _loss_record(s, worker, None, "no longer exists")
    disruption = gang_pod_disruption(pod)
    if disruption:
        return _loss_record(s, worker, pod, disruption, suspect=is_node_suspect(pod))
    due = _counts_as_lost_at(s, pod)
    if due is not None and s.now >= due:
        why = f" ({pod.end.reason})" if pod.end.reason not in ("", "Error") else ""
        code = (
            f"with exit code {pod.end.code}{why}" if pod.end.code is not None else f"({pod.state.reason or 'Failed'})"
        )
        return _loss_record(s, worker, pod, f"ended {code}", failed=True, suspect=True)
    if silent and has_joined(s.status, worker) and not pod.finished:
        return _loss_record(s, worker, pod, "was silent, and will be deleted", failed=True, suspect=True)
    return None


def _counts_as_lost_at(s: Situation, pod: PodView) -> datetime | None:
    """Return the time at which a worker that ended by itself counts as lost; None if it does not.

    It does not count if the whole attempt has ended: agents end when the launcher ends the attempt, and the launcher
    ends after them.
    """
    if not pod.ended_badly or not s.gang_began or _is_attempt_ending(s):
        return None
    wait_s = LAUNCHER_REPORT_S if pod.end.code == EXIT_GANG_STOPPED else ATTEMPT_ENDS_S
    return (pod.end.time or s.now - timedelta(seconds=wait_s)) + timedelta(seconds=wait_s)


def _is_attempt_ending(s: Situation) -> bool:
    launcher_ended = s.launcher is not None and s.launcher.finished and not launcher_loss(s)
    return launcher_ended or (s.report is not None and s.report.phase in ("Succeeded", "Failed"))


def may_create_workers(s: Situation) -> bool:
    """Return whether pods of the current attempt may be created now."""
    if s.stale_pods or s.observed.foreign or _is_attempt_ending(s) or s.status.ledger.queued_since is not None:
        return False
    if any(placement.holds for placement in s.placements):
        return False
    start = s.status.ledger.restart_not_before
    return start is None or s.now >= start


def _was_refused(s: Situation, worker: int, seen: _SeenWorkers) -> bool:
    """Return whether the API server refused the newest pod of `worker`, so that the pod was never created."""
    if worker_incarnation_number(s.status, worker) == 0 or is_worker_present(s.status, worker):
        return False
    return seen.refused or build.worker_name(s.job, worker) in seen.refused_pods


def _is_pod_registered(pod: PodView | None, seen: _SeenWorkers) -> bool:
    """Return whether the launcher reports this pod's agent as registered, not that of its predecessor."""
    if pod is None:
        return False
    entry = seen.entries.get(pod.id.index, {})
    is_its = entry.get("incarnation", pod.id.incarnation) == pod.id.incarnation
    return entry.get("registered") is True and entry.get("lost") is not True and is_its


def _with_incarnations(s: Situation, **changes: Any) -> JobStatus:
    notes: Incarnations = incarnations_of(s.status).model_copy(update=changes)
    return s.status.with_ledger(incarnations=notes)


def missing_elastic_pods(s: Situation, settings: BuildSettings) -> tuple[dict[str, Any], ...]:
    """Return the launcher and worker pods to create now, each with its number."""
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


def _loss_record(
    s: Situation,
    worker: int | None,
    pod: PodView | None,
    cause: str,
    *,
    failed: bool = False,
    suspect: bool = False,
) -> Loss:
    return Loss(
        worker=worker,
        pod=build.launcher_name(s.job) if worker is None else build.worker_name(s.job, worker),
        incarnation=incarnations_of(s.status).launcher
        if worker is None
        else worker_incarnation_number(s.status, worker),
        attempt=s.attempt,
        node=(pod.place.node or None) if pod is not None else None,
        cause=cause,
        failed=failed,
        suspect=suspect,
        time=s.now,
    )


def launcher_absence(s: Situation) -> PolicyResult:
    """Restart the gang, not counted, if no launcher that knows its world has come within the timeout."""
    since = _without_launcher_since(s)
    if since is None:
        return NO_DECISION
    name = build.launcher_name(s.job)
    if not any(_is_worker_pod_alive(s, pod) for pod in s.workers):
        message = f"attempt {s.attempt}: {name} was lost, and no running worker knows the world"
        return PolicyResult(Restart("Disrupted", message))
    limit_s = s.job.spec.networking.start_timeout_seconds
    due = since + timedelta(seconds=limit_s)
    if s.now < due:
        return PolicyResult(requeue_at=due)
    message = (
        f"attempt {s.attempt}: {name} was lost, and no new one has learned the world within {limit_s} s "
        "(networking.startTimeoutSeconds)"
    )
    return PolicyResult(Restart("Disrupted", message))


def record_launcher(s: Situation, decision: Decision | None) -> JobStatus:
    """Record the loss of the launcher's pod, and the number of a pod that is created now.

    Runs after `record_workers`.
    """
    if is_recording_over(s, decision):
        return s.status
    notes, cause = incarnations_of(s.status), launcher_loss(s)
    losses = notes.losses
    if cause and notes.launcher_present:
        losses = (*losses, _loss_record(s, None, s.launcher, cause))[-MAX_LOSSES:]
    pod = s.launcher
    updated = notes.model_copy(
        update={
            "losses": losses,
            "launcher_present": pod is not None and not cause and not _is_unwanted_launcher(s, pod),
            "launcher_lost": _without_launcher_since(s),
            **_uncounted_sums(s, notes),
        }
    )
    status = s.status.with_ledger(incarnations=updated)
    if not is_launcher_due(s, status) or _launcher_was_refused(s, notes):
        return status
    return status.with_ledger(incarnations=updated.model_copy(update={"launcher": notes.launcher + 1}))


def is_launcher_due(s: Situation, status: JobStatus | None = None) -> bool:
    """Return whether the launcher's pod is created now. `status` replaces the status of `s`."""
    if not may_create_workers(s) or build.launcher_name(s.job) in {pod.id.name for pod in s.observed.pods}:
        return False
    due = next_creation_time(status or s.status, None)
    return due is None or s.now >= due


def _is_unwanted_launcher(s: Situation, pod: PodView) -> bool:
    """Return whether this pod of the current attempt's launcher is to be deleted, because its name is needed."""
    if pod.id.role != "launcher":
        return False
    notes = incarnations_of(s.status)
    lost = any(loss.worker is None and loss.incarnation == pod.id.incarnation for loss in notes.losses)
    return pod.id.incarnation != notes.launcher or lost


def launcher_requeue_times(s: Situation) -> tuple[datetime, ...]:
    """Return the time at which the launcher may be created again."""
    due = next_creation_time(s.status, None)
    away = s.launcher is None and not s.finished and not s.is_without_pods
    return (due,) if away and due is not None and due > s.now else ()


def _without_launcher_since(s: Situation) -> datetime | None:
    """Return the time since which no launcher knows the world; None if one does, or without a world."""
    since = incarnations_of(s.status).launcher_lost
    if not s.has_world:
        return None
    if s.launcher is None or launcher_loss(s) or _is_unwanted_launcher(s, s.launcher):
        return since or s.now
    knows = s.launcher.finished or (s.report is not None and s.report.phase != "Waiting")
    return None if knows else since


def _is_worker_pod_alive(s: Situation, pod: PodView) -> bool:
    """Return whether a worker runs that has or may have been in the attempt's world."""
    return has_joined(s.status, pod.id.index) and not pod.finished and pod.deletion_time is None


def _uncounted_sums(s: Situation, notes: Incarnations) -> dict[str, int]:
    """Return lost steps and recoveries that the current launcher does not count, because it found no records."""
    known, reported = s.status.elastic, (s.report.elastic if s.report is not None else None) or {}
    if known is None or not s.has_world or not reported:
        return {}
    counts = [reported.get(field) for field in ("lostSteps", "recoveries")]
    steps, recoveries = (value if isinstance(value, int) else 0 for value in counts)
    if steps >= known.lost_steps - notes.lost_steps and recoveries >= known.recoveries - notes.recoveries:
        return {}
    return {"lost_steps": known.lost_steps, "recoveries": known.recoveries}


def _launcher_was_refused(s: Situation, notes: Incarnations) -> bool:
    if notes.launcher == 0 or notes.launcher_present:
        return False
    pod = ObjectRef("Pod", build.launcher_name(s.job))
    return any(refusal.ref == pod or refusal.ref.kind != "Pod" for refusal in s.observed.refusals)


def launcher_restart_deadline(s: Situation, launcher: PodView) -> datetime | None:
    """Return the time by which the kubelet may restart a killed launcher in its pod; None if it will not.

    The restarted launcher learns the world from the agents. A pod whose other containers run stays Running even if the
    kubelet does not support restart rules.
    """
    killed = launcher.end.code in RESTARTED_CODES and not termination_of(launcher, s.attempt)
    if s.job.spec.elastic is None or not killed or launcher.phase != "Running":
        return None
    due = (launcher.end.time or s.now) + timedelta(seconds=LAUNCHER_BACK_S)
    return due if s.now < due else None


def launcher_loss(s: Situation) -> str:
    """Return the cause of the loss of the launcher's pod; empty if it is not lost, or if the attempt ends with it.

    A launcher whose termination message has the attempt's outcome is not lost, whatever happens to its pod.
    """
    pod, notes = s.launcher, incarnations_of(s.status)
    if not s.has_world:
        return ""
    if pod is None:
        return "no longer exists" if notes.launcher_present else ""
    outcome = termination_of(pod, s.attempt).get("outcome")
    if outcome in ("Succeeded", "Failed") or launcher_restart_deadline(s, pod) is not None:
        return ""
    disruption = gang_pod_disruption(pod)
    if disruption or not pod.finished:
        return disruption
    if outcome == "Stopped":
        return "was stopped by a signal"
    why = f" ({pod.end.reason})" if pod.end.reason not in ("", "Error") else ""
    return f"was killed, exit code {pod.end.code}{why}" if pod.end.code in RESTARTED_CODES else ""


def incarnations_of(status: JobStatus) -> Incarnations:
    """Return the record of workers' pods; empty if there is none yet."""
    return status.ledger.incarnations or Incarnations()


def worker_incarnation_number(status: JobStatus, worker: int) -> int:
    """Return the number of the worker's last pod; 0 if none was ever created."""
    numbers = incarnations_of(status).numbers
    return numbers[worker] if worker < len(numbers) else 0


def is_worker_present(status: JobStatus, worker: int) -> bool:
    """Return whether that pod was observed alive and is not recorded as lost."""
    present = incarnations_of(status).present
    return worker < len(present) and present[worker]


def has_joined(status: JobStatus, worker: int) -> bool:
    """Return whether that pod's agent has registered with the launcher."""
    joined = incarnations_of(status).joined
    return is_worker_present(status, worker) and worker < len(joined) and joined[worker]


def next_creation_time(status: JobStatus, worker: int | None) -> datetime | None:
    """Return the earliest creation time of the next pod of `worker`, or of the launcher if None. The result is None if
    the pod may be created at once.

    The backoff starts with the second loss within an hour.
    """
    times = [loss.time for loss in incarnations_of(status).losses if loss.worker == worker]
    if not times:
        return None
    recent = sum(time > times[-1] - timedelta(seconds=REMEMBERED_S) for time in times)
    return next_pod_time(times[-1], recent)


def avoided_nodes(losses: Sequence[Loss], now: datetime) -> tuple[str, ...]:
    """Return nodes that have repeatedly lost workers for a reason of their own, the worst first."""
    since = now - timedelta(seconds=REMEMBERED_S)
    counts = Counter(loss.node for loss in losses if loss.suspect and loss.node and loss.time > since)
    return tuple(node for node, count in counts.most_common() if count >= LOSSES_OF_A_BAD_NODE)


def new_worker_losses(before: JobStatus, after: JobStatus) -> tuple[Loss, ...]:
    """Return losses that are in `after` and not in `before`."""
    known = {(loss.worker, loss.incarnation) for loss in incarnations_of(before).losses}
    return tuple(loss for loss in incarnations_of(after).losses if (loss.worker, loss.incarnation) not in known)


def avoidance_text(losses: Sequence[Loss], node: str) -> str:
    """Return the reason for which a node is avoided."""
    found = [loss for loss in losses if loss.suspect and loss.node == node]
    return f"node {node} has lost {len(found)} workers, the last because {found[-1].pod} {found[-1].cause}"


WORKERS = Policy(record=record_workers, requeue_times=workers_requeue_times, elastic=True)
LAUNCHER = Policy(launcher_absence, record_launcher, launcher_requeue_times, elastic=True)
