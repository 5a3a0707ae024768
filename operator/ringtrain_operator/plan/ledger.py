"""Updates of status.ledger, the operator's only record of a job's past: attempts, restarts, waiting times."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from ..placement.own_queue import PlacementContender
from ..spec.job import are_comparable_digests
from ..status.decision import Begin, Decision, Enqueue, Finish, GiveWay, Halt, Place, Policy, Resize, Restart
from ..status.ledger import EndedPod, Loss
from ..status.model import JobStatus
from ..status.situation import Situation

Note = TypeVar("Note", Loss, EndedPod)
NOT_QUEUED: dict[str, Any] = {
    "line_since": None,
    "waits_since": None,
    "line_wants": {},
    "line_workers": 0,
    "line_reserves": False,
    "queued_since": None,
    "too_large": False,
    "refused": "",
}
# The first restart is immediate; this value only determines the delay of the second one.
FIRST_DELAY_S = 1
LONGEST_DELAY_S = 300
# After an attempt that ran this long, the delay starts again from the beginning.
STEADY_S = 600


def record_decision(s: Situation, decision: Decision | None) -> JobStatus:
    """Return the status with the decision recorded in its ledger. Its conditions are not updated here."""
    match decision:
        case Begin():
            return _begin_attempt(s, decision)
        case Halt():
            return _halt_attempt(s)
        case Enqueue():
            return _enqueue_job(s, decision)
        case Restart():
            return _restart_attempt(s, decision)
        case Resize():
            return s.status.with_ledger(attempt_workers=decision.workers)
        case GiveWay():
            next_attempt = _status_without_pods(s.status.model_copy(update={"attempt": s.attempt + 1}))
            return next_attempt.with_ledger(
                attempt_workers=s.wanted_workers,
                queued_since=s.now,
                too_large=decision.too_large,
                refused=decision.refused,
                **_queue_fields_of_decision(s, decision),
            )
        case Place():
            # `refused` remains the reason until all pods have a place, or until there is another one.
            since = None if s.status.ledger.refused else decision.since
            return s.status.with_ledger(line_since=since, queued_since=None, too_large=False)
        case Finish():
            failure = decision.failure or s.status.failure
            ended = s.status.model_copy(update={"completion_time": s.now, "failure": failure})
            return ended.with_ledger(active_since=None, **NOT_QUEUED)
        case None:
            return _with_current_digest(s)


def _queue_fields_of_decision(s: Situation, decision: GiveWay) -> dict[str, Any]:
    if decision.place is not None:
        return queue_fields(s, decision.place)
    return {"line_since": None, "line_reserves": False, "waits_since": s.status.ledger.waits_since or s.now}


def queue_fields(s: Situation, place: PlacementContender) -> dict[str, Any]:
    """Return the fields of status.ledger that describe the job's place in the queue."""
    return {
        "line_since": place.since,
        "waits_since": s.status.ledger.waits_since or s.now,
        "line_wants": dict(place.wants),
        "line_workers": place.workers,
        "line_reserves": False,
    }


def _with_current_digest(s: Situation) -> JobStatus:
    """Return the status with the spec's digest replaced if another version of the operator has computed it."""
    recorded, current = s.status.ledger.begun_with, s.job.spec.frozen_digest
    if recorded in (None, current) or are_comparable_digests(current, recorded):
        return s.status
    return s.status.with_ledger(begun_with=current)


def record_gang_scheduler(s: Situation, decision: Decision | None) -> JobStatus:
    """Record the gang scheduler of the attempt. It does not change after the attempt's first pod."""
    begins = isinstance(decision, Begin)  # the job had no pods before
    return (
        s.status.with_ledger(gang_scheduler=s.gang.choice.scheduler) if begins or s.gang.attempt.is_open else s.status
    )


def _placement_requeue_times(s: Situation) -> tuple[datetime, ...]:
    """Return the times of the next checks that the attempt's placements request."""
    return tuple(moment for placement in s.placements for moment in placement.requeue_times())


def record_secret_name(s: Situation, _: Decision | None) -> JobStatus:
    """Record another name for the job's Secret if an object of another owner has the current name.

    The operator may not read Secrets. Only a successful creation shows that a Secret belongs to the job, and pods are
    created after the Secret. So the Secret that pods mount is recorded as the job's own, and later attempts use it
    again.
    """
    ledger = s.status.ledger
    if s.secret_is_ours and ledger.credentials_mounted == ledger.credentials:
        return s.status
    if s.secret_is_ours:
        return s.status.with_ledger(credentials_mounted=ledger.credentials)
    if s.secret not in s.observed.taken_secrets:
        return s.status
    return s.status.with_ledger(credentials=ledger.credentials + 1)


def without_future_times(status: JobStatus, now: datetime) -> JobStatus:
    """Return the status with times in the future replaced by `now`, so that no new pod waits for them.

    An operator whose clock was ahead may have recorded such times.
    """
    ledger, notes = status.ledger, status.ledger.incarnations
    start, delay = ledger.restart_not_before, timedelta(seconds=ledger.restart_delay_seconds)
    if notes is not None:
        lost = notes.launcher_lost
        notes = notes.model_copy(
            update={
                "losses": _with_capped_times(notes.losses, now),
                "launcher_lost": min(lost, now) if lost else None,
            }
        )
    return status.with_ledger(
        restart_not_before=min(start, now + delay) if start else None,
        ended_pods=_with_capped_times(ledger.ended_pods, now),
        incarnations=notes,
    )


def _begin_attempt(s: Situation, decision: Begin) -> JobStatus:
    # The deadline counts from the job's creation, not from the operator's first observation.
    fresh = decision.reason == "Started" and s.status.condition("Suspended") is None
    since = min(s.job.created, s.now) if fresh else s.now
    begun = s.status.model_copy(
        update={"attempt": decision.attempt, "start_time": s.status.start_time or s.now},
    )
    group = "PodGroup" if s.job.queue else None
    return _status_without_pods(begun).with_ledger(
        **NOT_QUEUED,
        attempt_workers=s.wanted_workers,
        begun_with=s.job.spec.frozen_digest,
        queued_as="Workload" if decision.reason == "Admitted" else group,
        active_since=s.status.ledger.active_since if decision.reason == "Changed" else since,
        restart_not_before=None,
        restart_delay_seconds=0,
    )


def _halt_attempt(s: Situation) -> JobStatus:
    """Return the status of a job whose pods are deleted because it is suspended or queued."""
    since = s.status.ledger.active_since
    active = int((s.now - since).total_seconds()) if since is not None else 0
    seconds = s.status.ledger.active_seconds + max(active, 0)
    halted = s.status.with_ledger(active_since=None, active_seconds=seconds, begun_with=None, **NOT_QUEUED)
    return halted.with_ledger(ended_pods=(), data_scale=None)


def _enqueue_job(s: Situation, decision: Enqueue) -> JobStatus:
    disrupted = 1 if decision.disrupted and s.attempt > 0 else 0
    counted = s.status.model_copy(update={"disruptions": s.status.disruptions + disrupted})
    return _halt_attempt(replace(s, status=counted)).with_ledger(
        queued_as="Workload", begun_with=s.job.spec.frozen_digest
    )


def _restart_attempt(s: Situation, decision: Restart) -> JobStatus:
    delay = _delay_s(s) if decision.delayed else 0
    disrupted = decision.delayed and not decision.counted and decision.lost is None
    restarted = s.status.model_copy(
        update={
            "attempt": s.attempt + 1,
            "restarts": s.status.restarts + (1 if decision.counted else 0),
            "disruptions": s.status.disruptions + (1 if disrupted else 0),
            "failure": decision.failure or s.status.failure,
        }
    )
    return _status_without_pods(restarted).with_ledger(
        attempt_workers=s.wanted_workers,
        restart_not_before=s.now + timedelta(seconds=delay) if delay > FIRST_DELAY_S else None,
        restart_delay_seconds=delay,
    )


def _status_without_pods(status: JobStatus) -> JobStatus:
    """Return the status for the start of an attempt, before it has pods and (in an elastic job) a world."""
    notes, elastic = status.ledger.incarnations, status.elastic
    if notes is None:
        return status
    sums = {"lost_steps": elastic.lost_steps, "recoveries": elastic.recoveries} if elastic is not None else {}
    apart = elastic.model_copy(update={"formation": 0, "ranks": 0}) if elastic is not None else None
    fresh = status.model_copy(update={"elastic": apart})
    none = {"present": (), "joined": (), "launcher_present": False, "launcher_lost": None}
    return fresh.with_ledger(incarnations=notes.model_copy(update={**none, **sums}))


def _delay_s(s: Situation) -> int:
    """Return the delay of the next attempt in seconds. It doubles each time and is reset after a long run."""
    running = s.status.condition("Running")
    steady = (
        running is not None
        and running.status == "True"
        and s.now - running.last_transition_time >= timedelta(seconds=STEADY_S)
    )
    previous = s.status.ledger.restart_delay_seconds
    return FIRST_DELAY_S if steady or previous == 0 else min(previous * 2, LONGEST_DELAY_S)


def _with_capped_times(notes: Iterable[Note], now: datetime) -> tuple[Note, ...]:
    return tuple(note if note.time <= now else note.model_copy(update={"time": now}) for note in notes)


CREDENTIALS = Policy(record=record_secret_name)
PLACEMENTS = Policy(record=record_gang_scheduler, requeue_times=_placement_requeue_times)
