"""The function `plan`: gets a decision from the policies, records it, and computes objects and status."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from ..build import BuildSettings
from ..errors import Invalid
from ..observe.model import Observed
from ..spec.job import Job, is_ours
from ..spec.parse import parse_job
from ..spec.training_container import describe_training_container
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
from ..status.waiting import QUOTA_EXCEEDED, delegated_status, queue_wait_text, running_condition
from ..workers.auxiliary import evaluator_status
from ..workers.data_workers import data_workers_status, input_bound_text, input_stalled_condition
from ..workers.elastic_status import degraded_condition, elastic_fields
from ..workers.gang import worker_counts
from .decide import POLICIES
from .events import events_between
from .ledger import record_decision, without_future_times
from .objects import plan_changes
from .queueing import MULTIKUEUE, delegated_workload_change, workload_change
from .result import Plan

# Interval at which to read a template again that is missing, or that does not make a valid job.
TEMPLATE_AGAIN_S = 10.0
# Conditions that only a running gang has.
_OF_A_WORLD: tuple[ConditionType, ...] = ("Degraded", "InputStalled")


def plan_object(
    obj: Mapping[str, Any],
    observed: Observed,
    now: datetime,
    settings: BuildSettings,
) -> Plan:
    """Return the plan for a job as read from the API. An invalid spec becomes Accepted=False.

    Templates are checked against `settings.pod_schema` when a job is about to start or resume, and when the spec of a
    job that never ran has changed. A running job was accepted before, perhaps by an operator with another schema
    version.
    """
    status = parse_status(observed.status)
    suspended, accepted = status.is_true("Suspended"), status.condition("Accepted")
    try:
        if observed.template_problem is not None:
            raise observed.template_problem
        resumes = suspended and not _is_winding_down(obj, observed)
        begins = status.attempt == 0 or resumes or (not suspended and _is_plan_corrected(obj, status, accepted))
        job = parse_job(obj, schema=settings.pod_schema, templates=begins)
    except Invalid as exc:
        if (obj.get("metadata") or {}).get("deletionTimestamp") or not _is_reported_here(obj):
            return Plan()
        generation = int((obj.get("metadata") or {}).get("generation") or 1)
        again = Plan(requeue_after_s=TEMPLATE_AGAIN_S if _needs_template_again(observed, status) else None)
        return _plan_with_status(again, status, rejected_status(status, exc, observed.template, generation, now))
    return plan(job, observed, status, now, settings)


def _needs_template_again(observed: Observed, status: JobStatus) -> bool:
    """Return whether the job's template must be read again, because it is missing, invalid, or not stored yet."""
    return observed.template_problem is not None or _template_status(observed) != status.template


def _template_status(observed: Observed) -> TemplateStatus | None:
    found = observed.template
    if found is None:
        return None
    return TemplateStatus(kind=found.kind, name=found.name, hash=found.hash, spec=dict(found.spec))


def _is_reported_here(obj: Mapping[str, Any]) -> bool:
    """Return whether this operator, and not the controller in spec.managedBy, reports an invalid spec."""
    spec = obj.get("spec")
    owner = spec.get("managedBy") if isinstance(spec, Mapping) else None
    return is_ours(owner) or owner == MULTIKUEUE


def _is_plan_corrected(obj: Mapping[str, Any], status: JobStatus, accepted: Condition | None) -> bool:
    """Return whether the templates of a job that never ran may have changed since it was last observed."""
    if status.ledger.has_run or status.is_true("Running") or status.finished:
        return False
    generation = (obj.get("metadata") or {}).get("generation")
    return generation != status.observed_generation or (accepted is not None and accepted.status == "False")


def _is_winding_down(obj: Mapping[str, Any], observed: Observed) -> bool:
    """Return whether a job with `suspend: true` still has pods or quota."""
    policy = (obj.get("spec") or {}).get("runPolicy")
    holds = bool(observed.pods) or (observed.kueue is not None and observed.kueue.workload is not None)
    return holds and isinstance(policy, Mapping) and policy.get("suspend") is True


def plan(job: Job, observed: Observed, previous: JobStatus, now: datetime, settings: BuildSettings) -> Plan:
    """Return the changes that bring the observed objects closer to what `job` requires. Pure, except for the keys and
    tokens that `settings` makes.

    `previous`: the status that was read. Repeatedly applying the plan and planning again leads, if nothing else
    happens, to an empty plan after a few rounds.
    """
    now = now.replace(microsecond=0)
    with_template = previous.model_copy(update={"template": _template_status(observed)})
    s = Situation(job, observed, without_future_times(with_template, now), now)
    if not job.deleting and job.spec.managed_by == MULTIKUEUE:
        return _plan_with_status(Plan(workload=delegated_workload_change(s, settings)), previous, delegated_status(s))
    if job.deleting or not is_ours(job.spec.managed_by):
        return Plan()
    policies = [policy for policy in POLICIES if job.spec.elastic is not None or not policy.elastic]
    decision, timers = _first_decision(s, policies)
    decided = _situation_with_decision(s, decision, policies)
    new = compose_status(decided, condition_of(decision) if decision else None, s)
    if new.is_true("Succeeded") or s.gang_may_have_begun or replace(s, status=new).gang_may_have_begun:
        new = new.with_ledger(has_run=True)
    settled = decided if new == decided.status else replace(s, status=new)
    todo = plan_changes(settled, settings)
    timers += [moment for policy in policies if policy.requeue_times for moment in policy.requeue_times(settled)]
    timers += [todo.requeue_at] if todo.requeue_at else []
    answer = Plan(
        create=todo.create,
        delete=todo.delete,
        workload=workload_change(settled, settings),
        requeue_after_s=max((min(timers) - now).total_seconds(), 0.0) if timers else None,
    )
    return _plan_with_status(answer, previous, new)


def _first_decision(s: Situation, policies: Sequence[Policy]) -> tuple[Decision | None, list[datetime]]:
    """Return the first decision of a policy, and the requeue times of the policies before it."""
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


def _situation_with_decision(s: Situation, decision: Decision | None, policies: Sequence[Policy]) -> Situation:
    """Return the situation with the decision, and each policy's records, in status.ledger.

    The same object is returned, with its cached values, if nothing changes.
    """
    notes = (record_decision, *(policy.record for policy in policies if policy.record))
    for note in notes:
        status = note(s, decision)
        if status != s.status:
            s = replace(s, status=status)
    return s


def _plan_with_status(answer: Plan, previous: JobStatus, new: JobStatus) -> Plan:
    """Return the plan `answer`, with the new status and its events if the status has changed."""
    if new == previous or (dumped := dump_status(new)) == dump_status(previous):
        return answer
    return replace(answer, status=dumped, events=events_between(previous, new))


def compose_status(s: Situation, decided: ConditionChange | None, seen: Situation) -> JobStatus:
    """Return the complete new status.

    `s` is the situation after the decision, with its effects in `s.status` except for the condition `decided`. `seen`
    is the situation before the decision. The two differ in the attempt if the decision has started another.
    """
    changes = [] if s.finished else [ConditionChange("Accepted", "True", "Valid", _accepted_message(s))]
    if decided is not None:
        changes.append(decided)
    status = with_conditions(s.status, tuple(changes), s.job.generation, s.now)
    if not s.finished:
        shipped = logs_not_shipped(seen)
        consequences = (*_consequences(s, status, decided), *([shipped] if shipped else []))
        status = with_conditions(status, consequences, s.job.generation, s.now)
        foremost = _foremost_condition(status)
        state: State = foremost.type if foremost is not None else "Pending"  # type: ignore[assignment]
        if _is_waiting_for_resources(s, status):
            state = "Queued"
        status = status.model_copy(update={"observed_generation": s.job.generation, "state": state})
    in_line = status.state == "Queued" and not status.is_true("Queued")
    why = status.condition("Running") if in_line else _foremost_condition(status) or status.condition("Running")
    spec = s.job.spec
    fields = {
        "reason": why.reason if why is not None else "",
        "message": why.message if why is not None else "",
        **worker_counts(s, status.finished),
    }
    if spec.elastic is not None and not s.finished:
        fields.update(elastic_fields(s, seen))
    if spec.data_workers is not None:
        fields.update(data_workers=data_workers_status(replace(s, status=status)))
    if spec.evaluator is not None:
        fields.update(evaluator=evaluator_status(replace(s, status=status), seen))
    fields.update(start_fields(seen))
    bound = input_bound_text(seen) if spec.data_workers is not None else ""
    begins = s.attempt != seen.attempt
    fields.update({"progress": None, "progress_summary": ""} if begins else progress_fields(seen, bound))
    return status.model_copy(update=fields)


def _accepted_message(s: Situation) -> str:
    """Return the message of the condition Accepted: the job's template and training container, unless obvious, and a
    queue that had no effect."""
    stored = s.status.template
    used = f"uses {stored.kind} {stored.name} as of its acceptance ({stored.hash})" if stored is not None else ""
    skipped = ""
    if s.status.ledger.queued_as == "PodGroup":
        skipped = f"does not wait in the queue {s.job.queue}: the operator found no Kueue that it may use"
    return "; ".join(filter(None, (used, describe_training_container(s.job.spec.worker.template), skipped)))


def _is_waiting_for_resources(s: Situation, status: JobStatus) -> bool:
    """Return whether the job waits for resources: without pods, for a quota, new nodes, or its gang scheduler."""
    if status.is_true("Suspended") or status.is_true("Queued"):
        return False
    if s.status.ledger.refused or s.gang_refusals:
        running = status.condition("Running")
        return running is not None and running.reason == QUOTA_EXCEEDED
    return s.status.ledger.queued_since is not None or s.provisioning.holds or s.gang.waits_for() is not None


def rejected_status(
    previous: JobStatus, error: Invalid, template: Template | None, generation: int, now: datetime
) -> JobStatus:
    """Return the status of a job with an invalid spec. The message lists every problem."""
    if previous.finished:
        return previous
    message = f"{error}" if template is None else f"{error} (the job merged with {template}, {template.hash})"
    change = (ConditionChange("Accepted", "False", "InvalidSpec", message),)
    status = with_conditions(previous, change, generation, now)
    fields = {"observed_generation": generation, "state": "Rejected", "reason": "InvalidSpec", "message": message}
    return status.model_copy(update=fields)


def _consequences(s: Situation, status: JobStatus, decided: ConditionChange | None) -> tuple[ConditionChange, ...]:
    """Return the changes of conditions that follow from the decision's own condition and the observed state."""
    if status.finished:
        # A job that ended in the same second in which it was suspended counts as ended.
        return _cleared_conditions(
            status, "Finished", "the job has ended", "Restarting", "Suspended", "Queued", *_OF_A_WORLD
        )
    suspends = decided is not None and decided.type == "Suspended"
    if (queued := status.condition("Queued")) is not None and status.is_true("Queued") and not suspends:
        waiting = ConditionChange("Queued", "True", queued.reason, queue_wait_text(s))
        return (
            waiting,
            *_cleared_conditions(status, "WaitingForQueue", waiting.message, "Restarting", "Suspended", *_OF_A_WORLD),
        )
    if (suspended := status.condition("Suspended")) is not None and status.is_true("Suspended"):
        is_changed = suspended.reason == "Changed"
        why = suspended.message if is_changed else "the job is suspended (runPolicy.suspend)"
        return _cleared_conditions(status, "Suspended", why, "Restarting", "Queued", *_OF_A_WORLD)
    if decided is not None and decided.type == "Restarting":
        restarting = ConditionChange("Running", "False", decided.reason, decided.message)
        return (restarting, *_cleared_world_conditions(status, decided.reason))
    running = running_condition(s)
    if running.status != "True":
        return (running, *_cleared_world_conditions(status, running.reason))
    world = degraded_condition(s) if s.job.spec.elastic is not None else None
    data = input_stalled_condition(s) if s.job.spec.data_workers is not None else None
    changes = (running, *filter(None, (world, data)))
    if status.is_true("Restarting"):
        return (*changes, ConditionChange("Restarting", "False", "Restarted", f"attempt {s.attempt} runs"))
    return changes


def _cleared_world_conditions(status: JobStatus, reason: str) -> tuple[ConditionChange, ...]:
    """Return changes that set the conditions about a running world to False, because there is no world."""
    passed = (kind for kind in _OF_A_WORLD if status.is_true(kind) or kind == "InputStalled")
    return tuple(ConditionChange(kind, "False", reason) for kind in passed if status.condition(kind) is not None)


def _cleared_conditions(
    status: JobStatus, reason: str, message: str, *passed: ConditionType
) -> tuple[ConditionChange, ...]:
    """Return changes that set Running to False, and also the conditions `passed` that the status has."""
    cleared = (ConditionChange(c.type, "False", reason) for c in status.conditions if c.type in passed)
    return (ConditionChange("Running", "False", reason, message), *cleared)


def _foremost_condition(status: JobStatus) -> Condition | None:
    """Return the most important condition that is True; None if none is."""
    true = {condition.type: condition for condition in status.conditions if condition.status == "True"}
    kinds: tuple[ConditionType, ...] = ("Succeeded", "Failed", "Suspended", "Queued", "Running", "Restarting")
    return next((true[kind] for kind in kinds if kind in true), None)
