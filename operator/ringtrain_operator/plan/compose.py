"""The status of a job: what was decided, and what was seen."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from ..errors import Invalid
from ..spec.training_template import Template
from ..status.model import Condition, ConditionChange, ConditionType, JobStatus, State, with_conditions
from ..status.progress import logs_not_shipped, progress_fields
from ..status.situation import Situation
from ..status.start import start_fields
from ..status.waiting import queued_because, running_or_why_not
from ..workers.data_workers import data_workers_status, input_bound, input_stalled
from ..workers.elastic import degraded, elastic_fields
from ..workers.evaluator import evaluator_status
from ..workers.gang import counts

# Said of a gang that runs.
_OF_A_WORLD: tuple[ConditionType, ...] = ("Degraded", "InputStalled")


def compose(s: Situation, decided: ConditionChange | None, seen: Situation) -> JobStatus:
    """The whole new status. `s.status` has the decision's bookkeeping already, `decided` is its condition.

    `seen`: the same before the decision, which may have begun another attempt.
    """
    changes = [] if s.finished else [ConditionChange("Accepted", "True", "Valid", _laid_over(s.status))]
    if decided is not None:
        changes.append(decided)
    status = with_conditions(s.status, tuple(changes), s.job.generation, s.now)
    if not s.finished:
        shipped = logs_not_shipped(seen)
        consequences = (*_consequences(s, status, decided), *([shipped] if shipped else []))
        status = with_conditions(status, consequences, s.job.generation, s.now)
        foremost = _foremost(status)
        state: State = foremost.type if foremost is not None else "Pending"  # type: ignore[assignment]
        if _waits_its_turn(s, status):
            state = "Queued"
        status = status.model_copy(update={"observed_generation": s.job.generation, "state": state})
    in_line = status.state == "Queued" and not status.is_true("Queued")
    why = status.condition("Running") if in_line else _foremost(status) or status.condition("Running")
    spec = s.job.spec
    fields = {"reason": why.reason if why is not None else "", **counts(s, status.finished)}
    if spec.elastic is not None and not s.finished:
        fields.update(elastic_fields(s, seen))
    if spec.data_workers is not None:
        fields.update(data_workers=data_workers_status(replace(s, status=status)))
    if spec.evaluator is not None:
        fields.update(evaluator=evaluator_status(replace(s, status=status), seen))
    fields.update(start_fields(seen))
    bound = input_bound(seen) if spec.data_workers is not None else ""
    fields.update(progress_fields(seen, status.is_true("Succeeded"), bound))
    return status.model_copy(update=fields)


def _laid_over(status: JobStatus) -> str:
    kept = status.template
    return f"laid over {kept.kind} {kept.name} as it was then ({kept.hash})" if kept is not None else ""


def _waits_its_turn(s: Situation, status: JobStatus) -> bool:
    """Whether the job waits for room without holding any: given back, or withheld by a gang scheduler."""
    if status.is_true("Suspended") or status.is_true("Queued"):
        return False
    return s.status.ledger.queued_since is not None or s.provisioning.holds or s.gang.waits_for() is not None


def rejected(
    previous: JobStatus, error: Invalid, template: Template | None, generation: int, now: datetime
) -> JobStatus:
    """The status of a job whose spec cannot be run, with every problem in the message."""
    if previous.finished:
        return previous
    message = f"{error}" if template is None else f"{error} (the job laid over {template}, {template.hash})"
    changes = (ConditionChange("Accepted", "False", "InvalidSpec", message),)
    status = with_conditions(previous, changes, generation, now)
    return status.model_copy(
        update={"observed_generation": generation, "state": "Rejected", "reason": "InvalidSpec"}
    )


def _consequences(s: Situation, status: JobStatus, decided: ConditionChange | None) -> tuple[ConditionChange, ...]:
    """What the other conditions become when the decided one, or what was seen, is as it is."""
    if status.finished:
        # A job that ended in the second in which it was suspended has ended.
        return _over(status, "Finished", "the job has ended", "Restarting", "Suspended", "Queued", *_OF_A_WORLD)
    suspends = decided is not None and decided.type == "Suspended"
    if (queued := status.condition("Queued")) is not None and status.is_true("Queued") and not suspends:
        waiting = ConditionChange("Queued", "True", queued.reason, queued_because(s))
        return (
            waiting,
            *_over(status, "WaitingForQueue", waiting.message, "Restarting", "Suspended", *_OF_A_WORLD),
        )
    if (suspended := status.condition("Suspended")) is not None and status.is_true("Suspended"):
        is_changed = suspended.reason == "Changed"
        why = suspended.message if is_changed else "the job is suspended (runPolicy.suspend)"
        return _over(status, "Suspended", why, "Restarting", "Queued", *_OF_A_WORLD)
    if decided is not None and decided.type == "Restarting":
        restarting = ConditionChange("Running", "False", decided.reason, decided.message)
        return (restarting, *_no_world(status, decided.reason))
    running = running_or_why_not(s)
    if running.status != "True":
        return (running, *_no_world(status, running.reason))
    world = degraded(s) if s.job.spec.elastic is not None else None
    data = input_stalled(s) if s.job.spec.data_workers is not None else None
    changes = (running, *filter(None, (world, data)))
    if status.is_true("Restarting"):
        return (*changes, ConditionChange("Restarting", "False", "Restarted", f"attempt {s.attempt} runs"))
    return changes


def _no_world(status: JobStatus, reason: str) -> tuple[ConditionChange, ...]:
    """A world that is not there is not too small, and waits for no input; the next one is served anew."""
    passed = (kind for kind in _OF_A_WORLD if status.is_true(kind) or kind == "InputStalled")
    return tuple(ConditionChange(kind, "False", reason) for kind in passed if status.condition(kind) is not None)


def _over(status: JobStatus, reason: str, message: str, *passed: ConditionType) -> tuple[ConditionChange, ...]:
    """Nothing runs, and of the `passed` conditions none that there is holds any more."""
    changes = (ConditionChange(c.type, "False", reason) for c in status.conditions if c.type in passed)
    return (ConditionChange("Running", "False", reason, message), *changes)


def _foremost(status: JobStatus) -> Condition | None:
    """The condition that holds and says most about the job."""
    held = {condition.type: condition for condition in status.conditions if condition.status == "True"}
    kinds: tuple[ConditionType, ...] = ("Succeeded", "Failed", "Suspended", "Queued", "Running", "Restarting")
    return next((held[kind] for kind in kinds if kind in held), None)
