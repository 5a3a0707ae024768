"""The pods of an elastic job: which of them are lost, and which are made anew within the attempt.

A pod's number is written into the status before the pod is made, and that it was seen alive is written, too. So a
pod that was seen and is gone was lost, and a pod that was never seen may never have been made: a killed operator
gives the next one a new number, and infers no loss. Scaled down is written before a pod is deleted for it.

The launcher's pod is made anew likewise, and the gang lives on. Ranks train on without a launcher, and wait for
one where their world has to change. The new one learns from their agents, which wait for it for
networking.startTimeoutSeconds. If none has come by then, or if no worker is left that it could learn from, the
gang restarts, which does not count.
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
    status_after_pause,
)
from ..status.situation import Situation
from .gang import LAUNCHER_REPORT_S, gang_pod_disruption, node_is_suspect

# So many losses are kept: more than what is ever counted of one worker or of one node.
LOSSES_KEPT = 64
# One loss is bad luck, and two may be; a node that loses a worker again and again is avoided for REMEMBERED_S.
LOSSES_OF_A_BAD_NODE = 3
# How long a launcher has to end after a worker that ended by itself: then the attempt has failed, not the worker.
ATTEMPT_ENDS_S = 5
# How long a kubelet may take to start a killed launcher again: the first pause is 10 s.
LAUNCHER_BACK_S = 60


@dataclass(frozen=True)
class _SeenWorkers:
    """What was seen of workers, by index: a look at all of them then costs no more than their number.

    `pods`: each worker's last pod, if it is there. `said`: what the launcher says of its agent; `silent`: workers
    whose agents it has given up. `refused`: whether the API refused what all pods need; `refused_pods`: by name.
    """

    pods: Mapping[int, PodView]
    said: Mapping[int, Mapping[str, Any]]
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
        said = by_index(s.report.workers if s.report else (), s.status.ledger.attempt_workers)
        refused = [refusal.ref for refusal in s.observed.refusals]
        return cls(
            pods={pod.id.index: pod for pod in own},
            said=said,
            silent=frozenset(index for index, worker in said.items() if worker.get("lost") is True),
            refused=any(ref.kind != "Pod" for ref in refused),
            refused_pods=frozenset(ref.name for ref in refused if ref.kind == "Pod"),
        )


def note_workers(s: Situation, decision: Decision | None) -> JobStatus:
    """The status with what became of workers' pods, and with numbers for the pods that are made now.

    `decision`: what was just decided; `s.status` has its bookkeeping, and not yet its condition.
    """
    if notes_end(s, decision):
        return s.status
    losses = list(worker_incarnations_of(s.status).losses)
    seen = _SeenWorkers.of(s)
    size = max(s.status.ledger.attempt_workers, len(worker_incarnations_of(s.status).numbers))
    present, joined = [False] * size, [False] * size
    for worker in range(s.status.ledger.attempt_workers):
        pod = seen.pods.get(worker)
        loss = _worker_loss(s, worker, pod, silent=worker in seen.silent)
        if loss is not None and is_worker_present(s.status, worker):
            losses.append(loss)
        present[worker] = loss is None and pod is not None and not _was_worker_lost(s, worker)
        joined[worker] = present[worker] and (has_joined(s.status, worker) or _registered_worker_pod(pod, seen))
    noted = _noted_workers(s, present=tuple(present), joined=tuple(joined), losses=tuple(losses[-LOSSES_KEPT:]))
    due = due_workers(replace(s, status=noted))
    numbers = [worker_incarnation_number(s.status, worker) for worker in range(size)]
    for worker in due:
        numbers[worker] += 0 if _was_refused(s, worker, seen) else 1
    return _noted_workers(replace(s, status=noted), numbers=tuple(numbers))


def notes_end(s: Situation, decision: Decision | None) -> bool:
    """Whether nothing is noted of pods: they go, or all is over."""
    without_pods = s.is_without_pods and not isinstance(decision, Begin)
    over = without_pods or s.finished or isinstance(decision, Halt | Enqueue | Finish)
    return s.attempt == 0 or over


def due_workers(s: Situation) -> tuple[int, ...]:
    """Workers whose pods are made now: none is there, nothing is in the way, and no loss is too recent."""
    if not may_create_workers(s):
        return ()
    taken = {pod.id.name for pod in s.observed.pods}
    absent = (w for w in range(s.status.ledger.attempt_workers) if build.worker_name(s.job, w) not in taken)
    return tuple(w for w in absent if (due := worker_made_after(s.status, w)) is None or s.now >= due)


def unwanted_elastic_pods(s: Situation) -> tuple[PodView, ...]:
    """Pods of the present attempt to delete: lost ones, whose names are needed, and workers that are too many."""
    launchers = tuple(pod for pod in s.pods if _is_unwanted_launcher(s, pod))
    return (*launchers, *(pod for pod in s.workers if _is_unwanted_worker(s, pod)))


def workers_wake_at(s: Situation) -> tuple[datetime, ...]:
    """When to look at the workers again if nothing happens."""
    if s.finished or s.is_without_pods:
        return ()
    pauses = (
        worker_made_after(s.status, worker)
        for worker in range(s.status.ledger.attempt_workers)
        if not is_worker_present(s.status, worker)
    )
    verdicts = (_counts_at(s, pod) for pod in s.workers if is_worker_present(s.status, pod.id.index))
    return tuple(moment for moment in (*pauses, *verdicts) if moment is not None and moment > s.now)


def _is_unwanted_worker(s: Situation, pod: PodView) -> bool:
    if pod.id.index >= s.status.ledger.attempt_workers or pod.id.incarnation != worker_incarnation_number(
        s.status, pod.id.index
    ):
        return True
    return not is_worker_present(s.status, pod.id.index)


def _was_worker_lost(s: Situation, worker: int) -> bool:
    """Whether the worker's last pod is noted as lost: its name is needed, even if it should answer again."""
    number = worker_incarnation_number(s.status, worker)
    return any((loss.worker, loss.incarnation) == (worker, number) for loss in worker_incarnations_of(s.status).losses)


def _worker_loss(s: Situation, worker: int, pod: PodView | None, *, silent: bool) -> Loss | None:
    """Why the worker's last pod is, or is to be, no more; None while it lives, and while that is not known."""
    if pod is None:
        return _as_loss(s, worker, None, "no longer exists")
    taken = gang_pod_disruption(pod)
    if taken:
        return _as_loss(s, worker, pod, taken, suspect=node_is_suspect(pod))
    due = _counts_at(s, pod)
    if due is not None and s.now >= due:
        why = f" ({pod.end.reason})" if pod.end.reason not in ("", "Error") else ""
        code = (
            f"with exit code {pod.end.code}{why}" if pod.end.code is not None else f"({pod.state.reason or 'Failed'})"
        )
        return _as_loss(s, worker, pod, f"ended {code}", failed=True, suspect=True)
    if silent and has_joined(s.status, worker) and not pod.finished:
        return _as_loss(s, worker, pod, "was silent, and is deleted", failed=True, suspect=True)
    return None


def _counts_at(s: Situation, pod: PodView) -> datetime | None:
    """When a worker that ended by itself counts as lost; None: it has not, or its attempt is what has ended.

    Agents end when the launcher ends the attempt, and the launcher ends after them.
    """
    if not pod.ended_badly or not s.gang_began or _attempt_ends(s):
        return None
    wait_s = LAUNCHER_REPORT_S if pod.end.code == EXIT_GANG_STOPPED else ATTEMPT_ENDS_S
    return (pod.end.time or s.now - timedelta(seconds=wait_s)) + timedelta(seconds=wait_s)


def _attempt_ends(s: Situation) -> bool:
    launcher_ended = s.launcher is not None and s.launcher.finished and not launcher_loss(s)
    return launcher_ended or (s.report is not None and s.report.phase in ("Succeeded", "Failed"))


def may_create_workers(s: Situation) -> bool:
    """Whether pods of the present attempt may be made now."""
    if s.stale_pods or s.observed.foreign or _attempt_ends(s) or s.status.ledger.queued_since is not None:
        return False
    if any(placement.holds for placement in s.placements):
        return False
    start = s.status.ledger.restart_not_before
    return start is None or s.now >= start


def _was_refused(s: Situation, worker: int, seen: _SeenWorkers) -> bool:
    """Whether the API refused the pod for which the present number was written: that was never made."""
    if worker_incarnation_number(s.status, worker) == 0 or is_worker_present(s.status, worker):
        return False
    return seen.refused or build.worker_name(s.job, worker) in seen.refused_pods


def _registered_worker_pod(pod: PodView | None, seen: _SeenWorkers) -> bool:
    """Whether the launcher says that this pod's agent is there, and not that of the one before."""
    if pod is None:
        return False
    said = seen.said.get(pod.id.index, {})
    is_its = said.get("incarnation", pod.id.incarnation) == pod.id.incarnation
    return said.get("registered") is True and said.get("lost") is not True and is_its


def _noted_workers(s: Situation, **changes: Any) -> JobStatus:
    notes: Incarnations = worker_incarnations_of(s.status).model_copy(update=changes)
    return s.status.noted(incarnations=notes)


def missing_elastic_pods(s: Situation, settings: BuildSettings) -> tuple[dict[str, Any], ...]:
    """The launcher and the workers that are made now, each with its number."""
    notes, secret = worker_incarnations_of(s.status), s.secret.name
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
    if not launcher_due(s):
        return tuple(workers)
    known = s.status.elastic.formation if s.status.elastic is not None else 0
    number = build.PodIncarnation(notes.launcher, formation=known)
    return (build.build_launcher_pod(s.job, s.attempt, secret, settings, number), *workers)


def _as_loss(
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
        incarnation=worker_incarnations_of(s.status).launcher
        if worker is None
        else worker_incarnation_number(s.status, worker),
        attempt=s.attempt,
        node=(pod.place.node or None) if pod is not None else None,
        cause=cause,
        failed=failed,
        suspect=suspect,
        time=s.now,
    )


def launcher_away(s: Situation) -> PolicyResult:
    """The gang restarts, not counted, when no launcher came that knows its world."""
    since = _worker_away_since(s)
    if since is None:
        return NO_DECISION
    name = build.launcher_name(s.job)
    if not any(_worker_pod_lives(s, pod) for pod in s.workers):
        message = f"attempt {s.attempt}: {name} was lost, and no worker is left that knows the world"
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


def note_launcher(s: Situation, decision: Decision | None) -> JobStatus:
    """The status with what became of the launcher's pod, and with a number for one that is made now.

    As `note_workers`, and after it.
    """
    if notes_end(s, decision):
        return s.status
    notes, cause = worker_incarnations_of(s.status), launcher_loss(s)
    losses = notes.losses
    if cause and notes.launcher_present:
        losses = (*losses, _as_loss(s, None, s.launcher, cause))[-LOSSES_KEPT:]
    pod = s.launcher
    noted = notes.model_copy(
        update={
            "losses": losses,
            "launcher_present": pod is not None and not cause and not _is_unwanted_launcher(s, pod),
            "launcher_lost": _worker_away_since(s),
            **_unknown_sums(s, notes),
        }
    )
    status = s.status.noted(incarnations=noted)
    if not launcher_due(s, status) or _launcher_was_refused(s, notes):
        return status
    return status.noted(incarnations=noted.model_copy(update={"launcher": notes.launcher + 1}))


def launcher_due(s: Situation, status: JobStatus | None = None) -> bool:
    """Whether the launcher's pod is made now; `status`: instead of that of `s`."""
    if not may_create_workers(s) or build.launcher_name(s.job) in {pod.id.name for pod in s.observed.pods}:
        return False
    due = worker_made_after(status or s.status, None)
    return due is None or s.now >= due


def _is_unwanted_launcher(s: Situation, pod: PodView) -> bool:
    """Whether this pod of the present attempt's launcher is to go: its name is needed."""
    if pod.id.role != "launcher":
        return False
    notes = worker_incarnations_of(s.status)
    lost = any(loss.worker is None and loss.incarnation == pod.id.incarnation for loss in notes.losses)
    return pod.id.incarnation != notes.launcher or lost


def launcher_wakes_at(s: Situation) -> tuple[datetime, ...]:
    """When to look at the launcher again if nothing happens."""
    due = worker_made_after(s.status, None)
    away = s.launcher is None and not s.finished and not s.is_without_pods
    return (due,) if away and due is not None and due > s.now else ()


def _worker_away_since(s: Situation) -> datetime | None:
    """Since when the world has had no launcher that knows it; None: it has one, or there is no world."""
    since = worker_incarnations_of(s.status).launcher_lost
    if not s.has_world:
        return None
    if s.launcher is None or launcher_loss(s) or _is_unwanted_launcher(s, s.launcher):
        return since or s.now
    knows = s.launcher.finished or (s.report is not None and s.report.phase != "Waiting")
    return None if knows else since


def _worker_pod_lives(s: Situation, pod: PodView) -> bool:
    """Whether a worker runs that has been in the attempt's world, or may have been."""
    return has_joined(s.status, pod.id.index) and not pod.finished and pod.deletion_time is None


def _unknown_sums(s: Situation, notes: Incarnations) -> dict[str, int]:
    """Lost steps and recoveries of which a launcher that found no notes of the one before knows nothing."""
    known, said = s.status.elastic, (s.report.elastic if s.report is not None else None) or {}
    if known is None or not s.has_world or not said:
        return {}
    told = [said.get(field) for field in ("lostSteps", "recoveries")]
    steps, recoveries = (value if isinstance(value, int) else 0 for value in told)
    if steps >= known.lost_steps - notes.lost_steps and recoveries >= known.recoveries - notes.recoveries:
        return {}
    return {"lost_steps": known.lost_steps, "recoveries": known.recoveries}


def _launcher_was_refused(s: Situation, notes: Incarnations) -> bool:
    if notes.launcher == 0 or notes.launcher_present:
        return False
    pod = ObjectRef("Pod", build.launcher_name(s.job))
    return any(refusal.ref == pod or refusal.ref.kind != "Pod" for refusal in s.observed.refusals)


def launcher_back_by(s: Situation, launcher: PodView) -> datetime | None:
    """Until when an elastic job's launcher that was killed may be started again in its pod; None: it is not.

    It learns the world from the agents then. A pod whose other containers run keeps its phase also where the
    kubelet knows no rules of restarting.
    """
    killed = launcher.end.code in RESTARTED_CODES and not termination_of(launcher, s.attempt)
    if s.job.spec.elastic is None or not killed or launcher.phase != "Running":
        return None
    due = (launcher.end.time or s.now) + timedelta(seconds=LAUNCHER_BACK_S)
    return due if s.now < due else None


def launcher_loss(s: Situation) -> str:
    """What became of the launcher's pod if that is, or is to be, no more, and the attempt goes on; else empty.

    A launcher that has said how the attempt ended is not lost, whatever becomes of its pod.
    """
    pod, notes = s.launcher, worker_incarnations_of(s.status)
    if not s.has_world:
        return ""
    if pod is None:
        return "no longer exists" if notes.launcher_present else ""
    outcome = termination_of(pod, s.attempt).get("outcome")
    if outcome in ("Succeeded", "Failed") or launcher_back_by(s, pod) is not None:
        return ""
    taken = gang_pod_disruption(pod)
    if taken or not pod.finished:
        return taken
    if outcome == "Stopped":
        return "was asked to stop"
    why = f" ({pod.end.reason})" if pod.end.reason not in ("", "Error") else ""
    return f"was killed, exit code {pod.end.code}{why}" if pod.end.code in RESTARTED_CODES else ""


def worker_incarnations_of(status: JobStatus) -> Incarnations:
    """The notes on workers' pods; empty for a job that has none yet."""
    return status.ledger.incarnations or Incarnations()


def worker_incarnation_number(status: JobStatus, worker: int) -> int:
    """Number of the worker's last pod; 0: none was ever made."""
    numbers = worker_incarnations_of(status).numbers
    return numbers[worker] if worker < len(numbers) else 0


def is_worker_present(status: JobStatus, worker: int) -> bool:
    """Whether that pod was seen alive, and not noted as lost since."""
    present = worker_incarnations_of(status).present
    return worker < len(present) and present[worker]


def has_joined(status: JobStatus, worker: int) -> bool:
    """Whether that pod's agent has registered with the launcher."""
    joined = worker_incarnations_of(status).joined
    return is_worker_present(status, worker) and worker < len(joined) and joined[worker]


def worker_made_after(status: JobStatus, worker: int | None) -> datetime | None:
    """When the next pod of `worker` may be made: after its second loss in an hour, later and later; None: at once.

    `worker` None: the launcher.
    """
    times = [loss.time for loss in worker_incarnations_of(status).losses if loss.worker == worker]
    if not times:
        return None
    recent = sum(time > times[-1] - timedelta(seconds=REMEMBERED_S) for time in times)
    return status_after_pause(times[-1], recent)


def avoided_nodes(losses: Sequence[Loss], now: datetime) -> tuple[str, ...]:
    """Nodes that have lost workers again and again, and not by being asked to; the worst first."""
    since = now - timedelta(seconds=REMEMBERED_S)
    counts = Counter(loss.node for loss in losses if loss.suspect and loss.node and loss.time > since)
    return tuple(node for node, count in counts.most_common() if count >= LOSSES_OF_A_BAD_NODE)


def new_worker_losses(before: JobStatus, after: JobStatus) -> tuple[Loss, ...]:
    """Losses that `after` tells of and `before` does not."""
    known = {(loss.worker, loss.incarnation) for loss in worker_incarnations_of(before).losses}
    return tuple(loss for loss in worker_incarnations_of(after).losses if (loss.worker, loss.incarnation) not in known)


def avoided_because(losses: Sequence[Loss], node: str) -> str:
    """Why a node is avoided, in a sentence."""
    found = [loss for loss in losses if loss.suspect and loss.node == node]
    return f"node {node} has lost {len(found)} workers, the last because {found[-1].pod} {found[-1].cause}"


WORKERS = Policy(note=note_workers, wakes=workers_wake_at, elastic=True)
LAUNCHER = Policy(launcher_away, note_launcher, launcher_wakes_at, elastic=True)
