"""Auxiliary pods (data workers, the evaluator), which are replaced one by one and do not end with an attempt.

The end of a pod is recorded in the status before the pod is deleted, so that a killed operator counts it once. A pod
that the cluster removed is replaced at once. A pod that ended by itself for the second time within an hour is replaced
after a growing delay. The evaluator may continue for a while after the job has succeeded.
"""

from collections.abc import Container, Iterator
from datetime import datetime, timedelta
from typing import Any, Literal

from .. import build
from ..build import BuildSettings, evaluator_name
from ..observe.model import PodView
from ..status.decision import Decision, Enqueue, Finish, Halt, Policy
from ..status.ledger import REMEMBERED_S, EndedPod
from ..status.model import EvaluatorStatus, JobStatus
from ..status.situation import Situation
from .gang import LAST_LINE_CHARACTERS, gang_pod_disruption

# Prefix of a message that is valid only while the refusal lasts.
REFUSED = "the API refused"

State = Literal["Pending", "Running", "Succeeded", "Failed", "Stopped"]  # of the evaluator


def record_ended_auxiliary_pods(s: Situation, decision: Decision | None) -> JobStatus:
    """Record the ended data workers and evaluators in status.ledger; after the job's end only the evaluator."""
    if isinstance(decision, Halt | Enqueue | Finish) or s.is_without_pods:
        return s.status
    if not s.auxiliary_pods and not s.status.ledger.ended_pods:
        return s.status
    notes = {ended.pod: ended for ended in s.status.ledger.ended_pods if ended.pod in s.auxiliary_names}
    for pod in s.auxiliary_pods:
        before, matters = notes.get(pod.id.name), pod.id.role == "evaluator" or not s.finished
        if pod.id.name not in s.auxiliary_names or not (matters and pod.finished and not gang_pod_disruption(pod)):
            continue
        if before is None or before.uid != pod.id.uid:
            notes[pod.id.name] = _ended_pod_record(s, pod, before)
    return s.status.with_ledger(ended_pods=tuple(notes.values()))


def unwanted_auxiliary_pods(s: Situation) -> tuple[PodView, ...]:
    """Return the auxiliary pods to delete: surplus ones, ended ones to replace, data workers with an earlier Secret."""
    return tuple(pod for pod in s.auxiliary_pods if _is_unwanted_auxiliary_pod(s, pod))


def due_auxiliary_names(s: Situation) -> tuple[str, ...]:
    """Return the names of auxiliary pods to create now."""
    existing = {pod.id.name for pod in s.observed.pods}
    return tuple(
        name
        for name in s.auxiliary_names
        if name not in existing
        and not _is_auxiliary_pod_done(s, name)
        and ((due := _next_auxiliary_creation(s, name)) is None or s.now >= due)
    )


def auxiliary_requeue_times(s: Situation) -> tuple[datetime, ...]:
    """Return the times at which ended auxiliary pods may be created again."""
    if s.finished or s.is_without_pods:
        return ()
    pauses = (_next_auxiliary_creation(s, name) for name in s.auxiliary_names if not _is_auxiliary_pod_done(s, name))
    return tuple(moment for moment in pauses if moment is not None and moment > s.now)


def _is_unwanted_auxiliary_pod(s: Situation, pod: PodView) -> bool:
    if pod.id.name not in s.auxiliary_names or pod.deletion_time is not None:
        return True
    if pod.id.role == "data" and pod.secret != s.secret.name:
        return True  # its certificates are not those of the gang
    return pod.finished and not _is_auxiliary_pod_done(s, pod.id.name)


def _is_auxiliary_pod_done(s: Situation, name: str) -> bool:
    """Return whether `name` is an evaluator that has succeeded, which is not started again."""
    return any(ended.pod == name and ended.done for ended in s.status.ledger.ended_pods)


def _next_auxiliary_creation(s: Situation, name: str) -> datetime | None:
    ended = next((ended for ended in s.status.ledger.ended_pods if ended.pod == name), None)
    return ended.next_at if ended is not None else None


def _ended_pod_record(s: Situation, pod: PodView, before: EndedPod | None) -> EndedPod:
    recent = before is not None and s.now - before.time <= timedelta(seconds=REMEMBERED_S)
    failures = before.failures if before is not None and recent else 0
    done = pod.id.role == "evaluator" and not pod.ended_badly
    return EndedPod(
        pod=pod.id.name,
        uid=pod.id.uid,
        node=pod.place.node or None,
        cause=_auxiliary_pod_end_cause(pod),
        failures=failures + (0 if done else 1),
        evaluator=pod.id.role == "evaluator",
        done=done,
        time=s.now,
    )


def _auxiliary_pod_end_cause(pod: PodView) -> str:
    """Return a text about the end of an auxiliary pod, with its last line of output."""
    if pod.end.code is None:
        return f"ended ({pod.state.reason or pod.phase})"
    why = f" ({pod.end.reason})" if pod.end.reason not in ("", "Error", "Completed") else ""
    last = next((line.strip() for line in reversed(pod.end.message.splitlines()) if line.strip()), "")
    return f"ended with exit code {pod.end.code}{why}" + (f": {last[:LAST_LINE_CHARACTERS]}" if last else "")


def missing_auxiliary_pods(s: Situation, settings: BuildSettings) -> Iterator[dict[str, Any]]:
    """Yield the auxiliary pods to create now."""
    due = set(due_auxiliary_names(s))
    for index in range(s.wanted_data_workers):
        if build.data_worker_name(s.job, index) in due:
            yield build.build_data_worker_pod(s.job, index, s.secret.name, settings)
    if s.job.spec.evaluator is not None and build.evaluator_name(s.job) in due:
        yield build.build_evaluator_pod(s.job, s.status.ledger.attempt_workers, settings)


def auxiliary_refusal_text(s: Situation, names: Container[str]) -> str:
    """Return the API's reason for refusing a pod with one of these names; empty if it refused none."""
    return next((str(one) for one in s.observed.refusals if one.ref.name in names), "")


def is_auxiliary_pod_running(pod: PodView) -> bool:
    """Return whether an auxiliary pod runs, is ready and is not being deleted."""
    return pod.phase == "Running" and pod.main.ready and not pod.finished and pod.deletion_time is None


def evaluator_deadline(s: Situation) -> datetime | None:
    """Return until when the evaluator may run after the job's success; None if it does not run then."""
    evaluator, ended = s.job.spec.evaluator, s.status.completion_time
    pod = s.evaluator
    if evaluator is None or ended is None or not s.status.is_true("Succeeded"):
        return None
    if pod is None or pod.finished or pod.deletion_time is not None:
        return None
    return ended + timedelta(seconds=evaluator.timeout_seconds)


def evaluator_status(s: Situation, seen: Situation) -> EvaluatorStatus:
    """Return the status field `evaluator`. `seen`: situation before this reconcile's changes of the ledger."""
    before = s.status.evaluator or EvaluatorStatus(state="Pending")
    name = evaluator_name(s.job)
    note = next((note for note in s.status.ledger.ended_pods if note.pod == name), None)
    new = note is not None and not note.done and note not in seen.status.ledger.ended_pods
    last = "" if before.message.startswith(REFUSED) else before.message
    if note is not None and not note.done:
        last = f"{note.pod} {note.cause}"
    return EvaluatorStatus(
        state=_auxiliary_pod_state(s, note),
        failures=before.failures + (1 if new else 0),
        message=auxiliary_refusal_text(s, (name,)) or last,
    )


def _auxiliary_pod_state(s: Situation, note: EndedPod | None) -> State:
    pod = s.evaluator
    if pod is not None and pod.finished:
        return "Failed" if pod.ended_badly else "Succeeded"
    if pod is not None and is_auxiliary_pod_running(pod):
        return "Running"
    if note is not None and note.done:
        return "Succeeded"
    if s.finished or s.is_without_pods:
        return "Stopped"
    return "Failed" if note is not None and pod is None else "Pending"


AUXILIARY_PODS = Policy(record=record_ended_auxiliary_pods, requeue_times=auxiliary_requeue_times)
