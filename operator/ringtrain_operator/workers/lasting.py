"""Pods that outlive attempts (data workers, the evaluator): replaced one by one, and never counted.

How a pod ended is noted in the status before the pod is deleted: an operator that is killed in between counts it
once. A pod that others took away is made anew at once; one that ended by itself for the second time within an hour
waits, longer each time. The evaluator may go on for a while beside a job that has succeeded.
"""

from collections.abc import Container, Iterator
from datetime import datetime, timedelta
from typing import Any, Literal

from .. import build
from ..build import BuildSettings, evaluator_name
from ..observe.model import PodView
from ..status.decision import Decision, Enqueue, Finish, Halt, Policy
from ..status.model import REMEMBERED_S, EndedPod, EvaluatorStatus, JobStatus
from ..status.situation import Situation
from .gang import LAST_LINE_CHARACTERS, gang_pod_disruption

# How a message begins that holds only as long as the refusal.
REFUSED = "the API refused"

State = Literal["Pending", "Running", "Succeeded", "Failed", "Stopped"]  # of the evaluator


def note_ended_lasting_pods(s: Situation, decision: Decision | None) -> JobStatus:
    """The status with how pods ended that are beside the gang; of a finished job the evaluator alone."""
    if isinstance(decision, Halt | Enqueue | Finish) or s.is_without_pods:
        return s.status
    if not s.lasting_pods and not s.status.ledger.ended_pods:
        return s.status
    notes = {note.pod: note for note in s.status.ledger.ended_pods if note.pod in s.lasting_names}
    for pod in s.lasting_pods:
        before, matters = notes.get(pod.id.name), pod.id.role == "evaluator" or not s.finished
        if pod.id.name not in s.lasting_names or not (matters and pod.finished and not gang_pod_disruption(pod)):
            continue
        if before is None or before.uid != pod.id.uid:
            notes[pod.id.name] = _lasting_pod_ended(s, pod, before)
    return s.status.noted(ended_pods=tuple(notes.values()))


def unwanted_lasting(s: Situation) -> tuple[PodView, ...]:
    """Pods beside the gang whose names are needed, or that are too many, or strangers to the gang by now."""
    return tuple(pod for pod in s.lasting_pods if _is_unwanted_lasting_pod(s, pod))


def due_lasting(s: Situation) -> tuple[str, ...]:
    """Names of pods beside the gang that are made now."""
    taken = {pod.id.name for pod in s.observed.pods}
    return tuple(
        name
        for name in s.lasting_names
        if name not in taken
        and not _is_lasting_pod_done(s, name)
        and ((due := _lasting_pod_made_after(s, name)) is None or s.now >= due)
    )


def lasting_wakes_at(s: Situation) -> tuple[datetime, ...]:
    """When to look at them again if nothing happens."""
    if s.finished or s.is_without_pods:
        return ()
    pauses = (_lasting_pod_made_after(s, name) for name in s.lasting_names if not _is_lasting_pod_done(s, name))
    return tuple(moment for moment in pauses if moment is not None and moment > s.now)


def _is_unwanted_lasting_pod(s: Situation, pod: PodView) -> bool:
    if pod.id.name not in s.lasting_names or pod.deletion_time is not None:
        return True
    if pod.id.role == "data" and pod.secret != s.secret.name:
        return True  # the gang has other certificates than this pod
    return pod.finished and not _is_lasting_pod_done(s, pod.id.name)


def _is_lasting_pod_done(s: Situation, name: str) -> bool:
    """Whether the evaluator has ended well: it has evaluated all that it wanted to."""
    return any(note.pod == name and note.done for note in s.status.ledger.ended_pods)


def _lasting_pod_made_after(s: Situation, name: str) -> datetime | None:
    note = next((note for note in s.status.ledger.ended_pods if note.pod == name), None)
    return note.next_at if note is not None else None


def _lasting_pod_ended(s: Situation, pod: PodView, before: EndedPod | None) -> EndedPod:
    recent = before is not None and s.now - before.time <= timedelta(seconds=REMEMBERED_S)
    failures = before.failures if before is not None and recent else 0
    done = pod.id.role == "evaluator" and pod.phase == "Succeeded"
    return EndedPod(
        pod=pod.id.name,
        uid=pod.id.uid,
        node=pod.place.node or None,
        cause=_lasting_pod_end_cause(pod),
        failures=failures + (0 if done else 1),
        evaluator=pod.id.role == "evaluator",
        done=done,
        time=s.now,
    )


def _lasting_pod_end_cause(pod: PodView) -> str:
    """How it ended, with the last line that it wrote."""
    if pod.end.code is None:
        return f"ended ({pod.state.reason or pod.phase})"
    why = f" ({pod.end.reason})" if pod.end.reason not in ("", "Error", "Completed") else ""
    last = next((line.strip() for line in reversed(pod.end.message.splitlines()) if line.strip()), "")
    return f"ended with exit code {pod.end.code}{why}" + (f": {last[:LAST_LINE_CHARACTERS]}" if last else "")


def missing_lasting(s: Situation, settings: BuildSettings) -> Iterator[dict[str, Any]]:
    """Pods beside the gang, as they are created now."""
    due = set(due_lasting(s))
    for index in range(s.wanted_data_workers):
        if build.data_worker_name(s.job, index) in due:
            yield build.build_data_worker_pod(s.job, index, s.secret.name, settings)
    if s.job.spec.evaluator is not None and build.evaluator_name(s.job) in due:
        yield build.build_evaluator_pod(s.job, s.status.ledger.attempt_workers, settings)


def refused_lasting_pods(s: Situation, names: Container[str]) -> str:
    """Why the API does not take a pod of these names; empty: it does."""
    said = (
        f"{REFUSED} {one.ref} ({one.reason}): {one.message}" for one in s.observed.refusals if one.ref.name in names
    )
    return next(said, "")


def lasting_pod_runs(pod: PodView) -> bool:
    """Whether the pod serves."""
    return pod.phase == "Running" and pod.main.ready and not pod.finished and pod.deletion_time is None


def evaluator_until(s: Situation) -> datetime | None:
    """Until when the evaluator of a job that succeeded may go on; None: there is none that does."""
    evaluator, ended = s.job.spec.evaluator, s.status.completion_time
    pod = s.evaluator
    if evaluator is None or ended is None or not s.status.is_true("Succeeded"):
        return None
    if pod is None or pod.finished or pod.deletion_time is not None:
        return None
    return ended + timedelta(seconds=evaluator.timeout_seconds)


def evaluator_status(s: Situation, seen: Situation) -> EvaluatorStatus:
    """The field `evaluator`. `seen`: the same before this look's notes."""
    before = s.status.evaluator or EvaluatorStatus(state="Pending")
    name = evaluator_name(s.job)
    note = next((note for note in s.status.ledger.ended_pods if note.pod == name), None)
    new = note is not None and not note.done and note not in seen.status.ledger.ended_pods
    last = "" if before.message.startswith(REFUSED) else before.message
    if note is not None and not note.done:
        last = f"{note.pod} {note.cause}"
    return EvaluatorStatus(
        state=_lasting_pod_state(s, note),
        failures=before.failures + (1 if new else 0),
        message=refused_lasting_pods(s, (name,)) or last,
    )


def _lasting_pod_state(s: Situation, note: EndedPod | None) -> State:
    pod = s.evaluator
    if pod is not None and pod.finished:
        return "Succeeded" if pod.phase == "Succeeded" else "Failed"
    if pod is not None and lasting_pod_runs(pod):
        return "Running"
    if note is not None and note.done:
        return "Succeeded"
    if s.finished or s.is_without_pods:
        return "Stopped"
    return "Failed" if note is not None and pod is None else "Pending"


LASTING = Policy(note=note_ended_lasting_pods, wakes=lasting_wakes_at)
