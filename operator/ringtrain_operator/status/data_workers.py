"""Data workers and the evaluator in the status: how many serve, what ranks wait, how the evaluator fares."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Literal

from ..build import evaluator_name
from ..observe.model import PodView
from ..observe.pods import by_index, is_finite
from ..spec.times import format_time
from .counts import counted
from .lasting import DataWorkersStatus, EndedPod, EvaluatorStatus
from .model import ConditionChange
from .situation import Situation

# Less than this is said nowhere but in figures: it costs nothing that a person would look for.
INPUT_BOUND = 0.05
# How a message begins that holds only as long as the refusal.
_REFUSED = "the API refused"


def lasting_fields(s: Situation, seen: Situation, ended: bool) -> dict[str, Any]:
    """The fields `dataWorkers` and `evaluator`; nothing of what the job has not.

    `seen`: the same before this look's notes. `ended`: the job has by now.
    """
    found: dict[str, Any] = {}
    if s.job.spec.data_workers is not None:
        before = s.status.data_workers
        kept = before.wait_fraction if before is not None else None
        fraction = wait_fraction(s) if s.report is not None else kept
        none_wanted = ended or s.is_without_pods or s.attempt == 0
        found["data_workers"] = DataWorkersStatus(
            desired=0 if none_wanted else s.wanted_data_workers,
            ready=0 if none_wanted else ready_data_workers(s),
            wait_fraction=fraction,
        )
    if s.job.spec.evaluator is not None:
        found["evaluator"] = _evaluator(s, seen, ended)
    return found


def wait_fraction(s: Situation) -> float | None:
    """Part of its time that a rank waits for input, as the launcher says now; None: it does not say."""
    said = (s.report.data if s.report is not None else None) or {}
    value = said.get("waitFraction")
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_finite(value):
        return None
    return round(min(max(float(value), 0.0), 1.0), 2)


def ready_data_workers(s: Situation) -> int:
    """Data workers that run and, as far as the launcher tells, have registered."""
    said = s.report.data.get("workers") if s.report is not None and s.report.data is not None else None
    wanted = set(s.lasting_names)
    running = [pod for pod in s.lasting_pods if pod.role == "data" and pod.name in wanted and _runs(pod)]
    if not isinstance(said, list):
        return len(running)
    workers = by_index(said, s.wanted_data_workers)
    return sum(workers.get(pod.index, {}).get("registered") is True for pod in running)


def input_bound(s: Situation) -> str:
    """`input-bound 23 %` of a job whose ranks wait for their data workers; else empty."""
    fraction = wait_fraction(s) if s.job.spec.data_workers is not None else None
    return f"input-bound {round(100 * fraction)} %" if fraction is not None and fraction >= INPUT_BOUND else ""


def input_stalled(s: Situation) -> ConditionChange | None:
    """The InputStalled condition of a job whose gang runs; None for a job without data workers."""
    if s.job.spec.data_workers is None:
        return None
    ready = ready_data_workers(s)
    if ready:
        text = f"{ready} of {counted(s.wanted_data_workers, 'data worker')} ready"
        return ConditionChange("InputStalled", "False", "DataWorkersReady", text)
    reason, why = _why_none(s)
    return ConditionChange("InputStalled", "True", reason, f"no data worker is ready, ranks wait for input: {why}")


def _why_none(s: Situation) -> tuple[str, str]:
    """What keeps data workers away, in one word and in a sentence."""
    names = [name for name in s.lasting_names if name != evaluator_name(s.job)]
    if refused := _refused(s, names):
        return "CreationRefused", refused
    pods = [pod for pod in s.lasting_pods if pod.role == "data"]
    for pod in pods:
        if pod.waiting:
            return pod.waiting, f"{pod.name}: {pod.waiting_message or pod.waiting}"
    running = [pod.name for pod in pods if _runs(pod)]
    if running and _were_ready(s):
        return (
            "DataWorkersSilent",
            f"{', '.join(running[:3])} run, and the launcher hears nothing of them any more",
        )
    if running:
        return "DataWorkersStarting", "none has registered with the launcher yet"
    ended = [note for note in s.status.ledger.ended_pods if note.pod in names]
    if ended:
        last = max(ended, key=lambda note: note.time)
        return "DataWorkersLost", f"{last.pod} {last.cause}; {_next_one(s, last)}"
    return ("DataWorkersLost", "all are gone") if _were_ready(s) else ("DataWorkersStarting", "none runs yet")


def _were_ready(s: Situation) -> bool:
    """Whether the present world has had data workers."""
    before = s.status.condition("InputStalled")
    return before is not None and before.reason in ("DataWorkersReady", "DataWorkersSilent", "DataWorkersLost")


def _next_one(s: Situation, ended: EndedPod) -> str:
    due = ended.next_at
    return f"a new one is made at {format_time(due)}" if due and s.now < due else "a new one is on its way"


def _evaluator(s: Situation, seen: Situation, ended: bool) -> EvaluatorStatus:
    before = s.status.evaluator or EvaluatorStatus(state="Pending")
    name = evaluator_name(s.job)
    note = next((note for note in s.status.ledger.ended_pods if note.pod == name), None)
    new = note is not None and not note.done and note not in seen.status.ledger.ended_pods
    last = "" if before.message.startswith(_REFUSED) else before.message
    if note is not None and not note.done:
        last = f"{note.pod} {note.cause}"
    return EvaluatorStatus(
        state=_evaluator_state(s, note, ended),
        failures=before.failures + (1 if new else 0),
        message=_refused(s, (name,)) or last,
    )


def _refused(s: Situation, names: Container[str]) -> str:
    """Why the API does not take a pod of these names; empty: it does."""
    said = (
        f"{_REFUSED} {one.ref} ({one.reason}): {one.message}"
        for one in s.observed.refusals
        if one.ref.name in names
    )
    return next(said, "")


State = Literal["Pending", "Running", "Succeeded", "Failed", "Stopped"]


def _evaluator_state(s: Situation, note: EndedPod | None, ended: bool) -> State:
    pod = s.evaluator
    if pod is not None and pod.finished:
        return "Succeeded" if pod.phase == "Succeeded" else "Failed"
    if pod is not None and _runs(pod):
        return "Running"
    if note is not None and note.done:
        return "Succeeded"
    if ended or s.is_without_pods:
        return "Stopped"
    return "Failed" if note is not None and pod is None else "Pending"


def _runs(pod: PodView) -> bool:
    return pod.phase == "Running" and pod.ready and not pod.finished and pod.deletion_time is None
