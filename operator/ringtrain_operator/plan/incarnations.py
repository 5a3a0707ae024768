"""Workers' pods of an elastic job: which of them are lost, and which are made anew within the attempt.

A pod's number is written into the status before the pod is made, and that it was seen alive is written, too. So a
pod that was seen and is gone was lost, and a pod that was never seen may never have been made: a killed operator
gives the next one a new number, and infers no loss. Scaled down is written before a pod is deleted for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from .. import build
from ..contract import EXIT_GANG_STOPPED
from ..observe.model import PodView
from ..observe.pods import by_index
from ..status.incarnations import LOSSES_KEPT, has_joined, incarnations_of, is_present, made_after, number_of
from ..status.model import Incarnations, JobStatus, Loss
from ..status.situation import Situation
from .decision import Begin, Decision, Enqueue, Finish, Halt, Policy
from .disruption import node_is_suspect, pod_disruption
from .launcher_loss import launcher_loss
from .outcome import LAUNCHER_REPORT_S, ended_badly

# How long a launcher has to end after a worker that ended by itself: then the attempt has failed, not the worker.
ATTEMPT_ENDS_S = 5


@dataclass(frozen=True)
class _Seen:
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
    def of(cls, s: Situation) -> _Seen:
        own = (pod for pod in reversed(s.workers) if pod.incarnation == number_of(s.status, pod.index))
        said = by_index(s.report.workers if s.report else (), s.status.ledger.attempt_workers)
        refused = [refusal.ref for refusal in s.observed.refusals]
        return cls(
            pods={pod.index: pod for pod in own},
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
    losses = list(incarnations_of(s.status).losses)
    seen = _Seen.of(s)
    size = max(s.status.ledger.attempt_workers, len(incarnations_of(s.status).numbers))
    present, joined = [False] * size, [False] * size
    for worker in range(s.status.ledger.attempt_workers):
        pod = seen.pods.get(worker)
        loss = _loss(s, worker, pod, silent=worker in seen.silent)
        if loss is not None and is_present(s.status, worker):
            losses.append(loss)
        present[worker] = loss is None and pod is not None and not _was_lost(s, worker)
        joined[worker] = present[worker] and (has_joined(s.status, worker) or _registered(pod, seen))
    noted = _noted(s, present=tuple(present), joined=tuple(joined), losses=tuple(losses[-LOSSES_KEPT:]))
    due = due_workers(replace(s, status=noted))
    numbers = [number_of(s.status, worker) for worker in range(size)]
    for worker in due:
        numbers[worker] += 0 if _was_refused(s, worker, seen) else 1
    return _noted(replace(s, status=noted), numbers=tuple(numbers))


def notes_end(s: Situation, decision: Decision | None) -> bool:
    """Whether nothing is noted of pods: the job is not elastic, or its pods go, or all is over."""
    without_pods = s.is_without_pods and not isinstance(decision, Begin)
    over = without_pods or s.status.finished or isinstance(decision, Halt | Enqueue | Finish)
    return s.job.spec.elastic is None or s.attempt == 0 or over


def due_workers(s: Situation) -> tuple[int, ...]:
    """Workers whose pods are made now: none is there, nothing is in the way, and no loss is too recent."""
    if not may_create(s):
        return ()
    taken = {pod.name for pod in s.observed.pods}
    absent = (w for w in range(s.status.ledger.attempt_workers) if build.worker_name(s.job, w) not in taken)
    return tuple(w for w in absent if (due := made_after(s.status, w)) is None or s.now >= due)


def unwanted_workers(s: Situation) -> tuple[PodView, ...]:
    """Pods of the present attempt to delete: lost ones, whose names are needed, and those that are too many."""
    if s.job.spec.elastic is None:
        return ()
    return tuple(pod for pod in s.workers if _is_unwanted(s, pod))


def wakes_at(s: Situation) -> tuple[datetime, ...]:
    """When to look at the workers again if nothing happens."""
    if s.job.spec.elastic is None or s.status.finished or s.is_without_pods:
        return ()
    pauses = (
        made_after(s.status, worker)
        for worker in range(s.status.ledger.attempt_workers)
        if not is_present(s.status, worker)
    )
    verdicts = (_counts_at(s, pod) for pod in s.workers if is_present(s.status, pod.index))
    return tuple(moment for moment in (*pauses, *verdicts) if moment is not None and moment > s.now)


def _is_unwanted(s: Situation, pod: PodView) -> bool:
    if pod.index >= s.status.ledger.attempt_workers or pod.incarnation != number_of(s.status, pod.index):
        return True
    return not is_present(s.status, pod.index)


def _was_lost(s: Situation, worker: int) -> bool:
    """Whether the worker's last pod is noted as lost: its name is needed, even if it should answer again."""
    number = number_of(s.status, worker)
    return any((loss.worker, loss.incarnation) == (worker, number) for loss in incarnations_of(s.status).losses)


def _loss(s: Situation, worker: int, pod: PodView | None, *, silent: bool) -> Loss | None:
    """Why the worker's last pod is, or is to be, no more; None while it lives, and while that is not known."""
    if pod is None:
        return _as_loss(s, worker, None, "no longer exists")
    taken = pod_disruption(pod)
    if taken:
        return _as_loss(s, worker, pod, taken, suspect=node_is_suspect(pod))
    due = _counts_at(s, pod)
    if due is not None and s.now >= due:
        why = f" ({pod.exit_reason})" if pod.exit_reason not in ("", "Error") else ""
        code = (
            f"with exit code {pod.exit_code}{why}" if pod.exit_code is not None else f"({pod.reason or 'Failed'})"
        )
        return _as_loss(s, worker, pod, f"ended {code}", failed=True, suspect=True)
    if silent and has_joined(s.status, worker) and not pod.finished:
        return _as_loss(s, worker, pod, "was silent, and is deleted", failed=True, suspect=True)
    return None


def _counts_at(s: Situation, pod: PodView) -> datetime | None:
    """When a worker that ended by itself counts as lost; None: it has not, or its attempt is what has ended.

    Agents end when the launcher ends the attempt, and the launcher ends after them.
    """
    if not ended_badly(pod) or not s.gang_began or _attempt_ends(s):
        return None
    wait_s = LAUNCHER_REPORT_S if pod.exit_code == EXIT_GANG_STOPPED else ATTEMPT_ENDS_S
    return (pod.exit_time or s.now - timedelta(seconds=wait_s)) + timedelta(seconds=wait_s)


def _attempt_ends(s: Situation) -> bool:
    launcher_ended = s.launcher is not None and s.launcher.finished and not launcher_loss(s)
    return launcher_ended or (s.report is not None and s.report.phase in ("Succeeded", "Failed"))


def may_create(s: Situation) -> bool:
    """Whether pods of the present attempt may be made now."""
    if s.stale_pods or s.observed.foreign or _attempt_ends(s) or s.status.ledger.queued_since is not None:
        return False
    if any(placement.holds for placement in s.placements):
        return False
    start = s.status.ledger.restart_not_before
    return start is None or s.now >= start


def _was_refused(s: Situation, worker: int, seen: _Seen) -> bool:
    """Whether the API refused the pod for which the present number was written: that was never made."""
    if number_of(s.status, worker) == 0 or is_present(s.status, worker):
        return False
    return seen.refused or build.worker_name(s.job, worker) in seen.refused_pods


def _as_loss(
    s: Situation, worker: int, pod: PodView | None, cause: str, *, failed: bool = False, suspect: bool = False
) -> Loss:
    return Loss(
        worker=worker,
        pod=build.worker_name(s.job, worker),
        incarnation=number_of(s.status, worker),
        attempt=s.attempt,
        node=(pod.node or None) if pod is not None else None,
        cause=cause,
        failed=failed,
        suspect=suspect,
        time=s.now,
    )


def _registered(pod: PodView | None, seen: _Seen) -> bool:
    """Whether the launcher says that this pod's agent is there, and not that of the one before."""
    if pod is None:
        return False
    said = seen.said.get(pod.index, {})
    is_its = said.get("incarnation", pod.incarnation) == pod.incarnation
    return said.get("registered") is True and said.get("lost") is not True and is_its


def _noted(s: Situation, **changes: Any) -> JobStatus:
    notes: Incarnations = incarnations_of(s.status).model_copy(update=changes)
    return s.status.noted(incarnations=notes)


WORKERS = Policy(note=note_workers, wakes=wakes_at)
