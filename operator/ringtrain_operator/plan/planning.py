"""`plan`: ask the policies in turn, enter the decision, see what is missing, say how things stand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from ..build import BuildSettings
from ..errors import Invalid
from ..observe.model import Observed
from ..spec.job import Job, is_ours
from ..spec.parse import parse_job
from ..spec.training_template import Template
from ..status.decision import NO_DECISION, Decision, Policy, condition_of
from ..status.model import (
    Condition,
    ConditionChange,
    ConditionType,
    JobStatus,
    State,
    TemplateStatus,
    dump_status,
    parse_status,
    with_conditions,
)
from ..status.progress import logs_not_shipped, progress_fields, start_fields
from ..status.situation import Situation
from ..status.waiting import kept_here, queued_because, running_or_why_not
from ..workers.data_workers import data_workers_stalled, data_workers_status, input_bound
from ..workers.elastic_status import degraded_elastic_world, elastic_fields
from ..workers.gang import worker_counts
from ..workers.lasting import evaluator_status
from .decide import POLICIES
from .events import events_between
from .ledger import enter_decision_in_ledger, not_ahead
from .objects import plan_changes
from .queueing import MULTIKUEUE, queued_elsewhere, workload_change
from .result import Plan

# A template that is missing, or does not make a valid job, may be another by then.
TEMPLATE_AGAIN_S = 10.0
# Said of a gang that runs.
_OF_A_WORLD: tuple[ConditionType, ...] = ("Degraded", "InputStalled")


def plan_object(
    obj: Mapping[str, Any],
    observed: Observed,
    now: datetime,
    settings: BuildSettings | None = None,
) -> Plan:
    """`plan` for a job as the API holds it; an invalid spec is said in the Accepted condition.

    Templates are held against `settings.pod_schema` when a job is about to start or to go on, and when one that
    never ran has changed. A job that runs was accepted before, perhaps by an operator that knew another version.
    """
    settings = settings or BuildSettings()
    status = parse_status(observed.status)
    suspended, accepted = status.is_true("Suspended"), status.condition("Accepted")
    try:
        if observed.template_problem is not None:
            raise observed.template_problem
        resumes = suspended and not _plan_winds_down(obj, observed)
        begins = status.attempt == 0 or resumes or (not suspended and _is_plan_corrected(obj, status, accepted))
        job = parse_job(obj, schema=settings.pod_schema, templates=begins)
    except Invalid as exc:
        if (obj.get("metadata") or {}).get("deletionTimestamp") or not _is_told_here(obj):
            return Plan()
        generation = int((obj.get("metadata") or {}).get("generation") or 1)
        again = Plan(requeue_after_s=TEMPLATE_AGAIN_S if _is_read_again(observed, status) else None)
        return _plan_answer(again, status, rejected(status, exc, observed.template, generation, now))
    return plan(job, observed, status, now, settings)


def _is_read_again(observed: Observed, status: JobStatus) -> bool:
    """Whether the job can't be accepted with the template that it names, as that is now."""
    return observed.template_problem is not None or _kept_plan(observed) != status.template


def _kept_plan(observed: Observed) -> TemplateStatus | None:
    found = observed.template
    if found is None:
        return None
    return TemplateStatus(kind=found.kind, name=found.name, hash=found.hash, spec=dict(found.spec))


def _is_told_here(obj: Mapping[str, Any]) -> bool:
    """Whether it is for this operator to say that the job can't run: no other controller was named for it."""
    spec = obj.get("spec")
    owner = spec.get("managedBy") if isinstance(spec, Mapping) else None
    return is_ours(owner) or owner == MULTIKUEUE


def _is_plan_corrected(obj: Mapping[str, Any], status: JobStatus, accepted: Condition | None) -> bool:
    """Whether a job that is not suspended may have other templates than at the last look, since it never ran."""
    if status.ledger.has_run or status.is_true("Running") or status.finished:
        return False
    generation = (obj.get("metadata") or {}).get("generation")
    return generation != status.observed_generation or (accepted is not None and accepted.status == "False")


def _plan_winds_down(obj: Mapping[str, Any], observed: Observed) -> bool:
    """Whether the job is to stay suspended and some of its pods, or the quota that they had, are still there."""
    policy = (obj.get("spec") or {}).get("runPolicy")
    holds = bool(observed.pods) or (observed.kueue is not None and observed.kueue.workload is not None)
    return holds and isinstance(policy, Mapping) and policy.get("suspend") is True


def plan(job: Job, observed: Observed, previous: JobStatus, now: datetime, settings: BuildSettings) -> Plan:
    """What to write now so that `job` goes on from what is `observed`. Pure, but for keys and tokens (`settings`).

    `previous`: the status that was read. Applying the answer and planning again ends, after a few rounds without
    anything happening, in an empty plan.
    """
    now = now.replace(microsecond=0)
    kept = previous.model_copy(update={"template": _kept_plan(observed)})
    s = Situation(job, observed, not_ahead(kept, now), now)
    if not job.deleting and job.spec.managed_by == MULTIKUEUE:
        return _plan_answer(Plan(workload=queued_elsewhere(s, settings)), previous, kept_here(s))
    if job.deleting or not is_ours(job.spec.managed_by):
        return Plan()
    policies = [policy for policy in POLICIES if job.spec.elastic is not None or not policy.elastic]
    decision, timers = _decide_policy(s, policies)
    decided = _noted_decision(s, decision, policies)
    new = compose_status(decided, condition_of(decision) if decision else None, s)
    if new.is_true("Succeeded") or s.gang_may_have_begun or replace(s, status=new).gang_may_have_begun:
        new = new.noted(has_run=True)
    settled = decided if new == decided.status else replace(s, status=new)
    todo = plan_changes(settled, settings)
    timers += [moment for policy in policies if policy.wakes for moment in policy.wakes(settled)]
    timers += [todo.requeue_at] if todo.requeue_at else []
    answer = Plan(
        create=todo.create,
        delete=todo.delete,
        workload=workload_change(settled, settings),
        requeue_after_s=max((min(timers) - now).total_seconds(), 0.0) if timers else None,
    )
    return _plan_answer(answer, previous, new)


def _decide_policy(s: Situation, policies: Sequence[Policy]) -> tuple[Decision | None, list[datetime]]:
    """The first decision of any policy, and when to ask again if nothing happens."""
    timers: list[datetime] = []
    for policy in policies if not s.finished else ():
        result = policy.decide(s) if policy.decide else NO_DECISION
        if result.decision is not None:
            return result.decision, timers
        if result.requeue_at is not None:
            timers.append(result.requeue_at)
        if result.is_last:
            break
    return None, timers


def _noted_decision(s: Situation, decision: Decision | None, policies: Sequence[Policy]) -> Situation:
    """The situation with the decision in its status, and what each policy has to remember.

    It stays the same, with all that it has worked out, until something changes.
    """
    notes = (enter_decision_in_ledger, *(policy.note for policy in policies if policy.note))
    for note in notes:
        status = note(s, decision)
        if status != s.status:
            s = replace(s, status=status)
    return s


def _plan_answer(answer: Plan, previous: JobStatus, new: JobStatus) -> Plan:
    """`answer` with the new status and its events, if it is new at all."""
    if new == previous or (said := dump_status(new)) == dump_status(previous):
        return answer
    return replace(answer, status=said, events=events_between(previous, new))


def compose_status(s: Situation, decided: ConditionChange | None, seen: Situation) -> JobStatus:
    """The whole new status. `s.status` has the decision's bookkeeping already, `decided` is its condition.

    `seen`: the same before the decision, which may have begun another attempt.
    """
    said = [] if s.finished else [ConditionChange("Accepted", "True", "Valid", _laid_over(s.status))]
    if decided is not None:
        said.append(decided)
    status = with_conditions(s.status, tuple(said), s.job.generation, s.now)
    if not s.finished:
        shipped = logs_not_shipped(seen)
        consequences = (*_consequences(s, status, decided), *([shipped] if shipped else []))
        status = with_conditions(status, consequences, s.job.generation, s.now)
        foremost = _foremost_condition(status)
        state: State = foremost.type if foremost is not None else "Pending"  # type: ignore[assignment]
        if _waits_its_turn(s, status):
            state = "Queued"
        status = status.model_copy(update={"observed_generation": s.job.generation, "state": state})
    in_line = status.state == "Queued" and not status.is_true("Queued")
    why = status.condition("Running") if in_line else _foremost_condition(status) or status.condition("Running")
    spec = s.job.spec
    fields = {"reason": why.reason if why is not None else "", **worker_counts(s, status.finished)}
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
    said = (ConditionChange("Accepted", "False", "InvalidSpec", message),)
    status = with_conditions(previous, said, generation, now)
    return status.model_copy(update={"observed_generation": generation, "state": "Rejected", "reason": "InvalidSpec"})


def _consequences(s: Situation, status: JobStatus, decided: ConditionChange | None) -> tuple[ConditionChange, ...]:
    """What the other conditions become when the decided one, or what was seen, is as it is."""
    if status.finished:
        # A job that ended in the second in which it was suspended has ended.
        return _planned_job_over(
            status, "Finished", "the job has ended", "Restarting", "Suspended", "Queued", *_OF_A_WORLD
        )
    suspends = decided is not None and decided.type == "Suspended"
    if (queued := status.condition("Queued")) is not None and status.is_true("Queued") and not suspends:
        waiting = ConditionChange("Queued", "True", queued.reason, queued_because(s))
        return (
            waiting,
            *_planned_job_over(status, "WaitingForQueue", waiting.message, "Restarting", "Suspended", *_OF_A_WORLD),
        )
    if (suspended := status.condition("Suspended")) is not None and status.is_true("Suspended"):
        is_changed = suspended.reason == "Changed"
        why = suspended.message if is_changed else "the job is suspended (runPolicy.suspend)"
        return _planned_job_over(status, "Suspended", why, "Restarting", "Queued", *_OF_A_WORLD)
    if decided is not None and decided.type == "Restarting":
        restarting = ConditionChange("Running", "False", decided.reason, decided.message)
        return (restarting, *_no_world(status, decided.reason))
    running = running_or_why_not(s)
    if running.status != "True":
        return (running, *_no_world(status, running.reason))
    world = degraded_elastic_world(s) if s.job.spec.elastic is not None else None
    data = data_workers_stalled(s) if s.job.spec.data_workers is not None else None
    said = (running, *filter(None, (world, data)))
    if status.is_true("Restarting"):
        return (*said, ConditionChange("Restarting", "False", "Restarted", f"attempt {s.attempt} runs"))
    return said


def _no_world(status: JobStatus, reason: str) -> tuple[ConditionChange, ...]:
    """A world that is not there is not too small, and waits for no input; the next one is served anew."""
    passed = (kind for kind in _OF_A_WORLD if status.is_true(kind) or kind == "InputStalled")
    return tuple(ConditionChange(kind, "False", reason) for kind in passed if status.condition(kind) is not None)


def _planned_job_over(
    status: JobStatus, reason: str, message: str, *passed: ConditionType
) -> tuple[ConditionChange, ...]:
    """Nothing runs, and of the `passed` conditions none that there is holds any more."""
    said = (ConditionChange(c.type, "False", reason) for c in status.conditions if c.type in passed)
    return (ConditionChange("Running", "False", reason, message), *said)


def _foremost_condition(status: JobStatus) -> Condition | None:
    """The condition that holds and says most about the job."""
    held = {condition.type: condition for condition in status.conditions if condition.status == "True"}
    kinds: tuple[ConditionType, ...] = ("Succeeded", "Failed", "Suspended", "Queued", "Running", "Restarting")
    return next((held[kind] for kind in kinds if kind in held), None)
