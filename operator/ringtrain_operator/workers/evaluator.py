"""The evaluator: how it fares, and until when it may go on beside a job that has succeeded."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from ..build import evaluator_name
from ..status.model import EndedPod, EvaluatorStatus
from ..status.situation import Situation
from .lasting import REFUSED, refused_of, runs

State = Literal["Pending", "Running", "Succeeded", "Failed", "Stopped"]


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
        state=_state(s, note),
        failures=before.failures + (1 if new else 0),
        message=refused_of(s, (name,)) or last,
    )


def _state(s: Situation, note: EndedPod | None) -> State:
    pod = s.evaluator
    if pod is not None and pod.finished:
        return "Succeeded" if pod.phase == "Succeeded" else "Failed"
    if pod is not None and runs(pod):
        return "Running"
    if note is not None and note.done:
        return "Succeeded"
    if s.finished or s.is_without_pods:
        return "Stopped"
    return "Failed" if note is not None and pod is None else "Pending"
