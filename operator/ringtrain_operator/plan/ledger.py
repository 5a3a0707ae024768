"""What a decision changes in the status: attempts, restarts, clocks. All the past that the operator keeps."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from ..placement.line import PlacementContender
from ..spec.job import comparable_spec
from ..status.decision import Begin, Decision, Enqueue, Finish, GiveWay, Halt, Place, Policy, Resize, Restart
from ..status.model import EndedPod, JobStatus, Loss
from ..status.situation import Situation

Note = TypeVar("Note", Loss, EndedPod)
OUT_OF_LINE: dict[str, Any] = {
    "line_since": None,
    "waits_since": None,
    "line_wants": {},
    "line_workers": 0,
    "line_reserves": False,
    "queued_since": None,
    "too_large": False,
    "refused": "",
}
# Of a first restart only the next one's delay follows: it comes at once.
FIRST_DELAY_S = 1
LONGEST_DELAY_S = 300
# An attempt that ran for so long was no quick failure: the delay starts over.
STEADY_S = 600


def enter_decision_in_ledger(s: Situation, decision: Decision | None) -> JobStatus:
    """The status with the decision's bookkeeping in it; conditions and counts are written later."""
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
            return s.status.noted(attempt_workers=decision.workers)
        case GiveWay():
            next_attempt = _without_pods(s.status.model_copy(update={"attempt": s.attempt + 1}))
            return next_attempt.noted(
                attempt_workers=s.wanted_workers,
                queued_since=s.now,
                too_large=decision.too_large,
                refused=decision.refused,
                **_placement_of_decision(s, decision),
            )
        case Place():
            placing = {"queued_since": None, "too_large": False, "refused": ""}
            return s.status.noted(line_since=None if s.status.ledger.refused else decision.since, **placing)
        case Finish():
            failure = decision.failure or s.status.failure
            ended = s.status.model_copy(update={"completion_time": s.now, "failure": failure})
            return ended.noted(active_since=None, **OUT_OF_LINE)
        case None:
            return _as_this_version_notes(s)


def _placement_of_decision(s: Situation, decision: GiveWay) -> dict[str, Any]:
    if decision.place is not None:
        return placed_at(s, decision.place)
    return {"line_since": None, "line_reserves": False, "waits_since": s.status.ledger.waits_since or s.now}


def placed_at(s: Situation, place: PlacementContender) -> dict[str, Any]:
    """What is noted of the job's place in the line."""
    return {
        "line_since": place.since,
        "waits_since": s.status.ledger.waits_since or s.now,
        "line_wants": dict(place.wants),
        "line_workers": place.workers,
        "line_reserves": False,
    }


def _as_this_version_notes(s: Situation) -> JobStatus:
    """The status; what an operator of another version has noted of the spec that the job began with anew."""
    noted, fixed = s.status.ledger.begun_with, s.job.spec.fixed
    if noted in (None, fixed) or comparable_spec(fixed, noted):
        return s.status
    return s.status.noted(begun_with=fixed)


def note_gang(s: Situation, decision: Decision | None) -> JobStatus:
    """The status with who places the attempt's pods. It stays as it is from the attempt's first pod on."""
    begins = isinstance(decision, Begin)  # until then the job was without pods
    return s.status.noted(gang_scheduler=s.gang.choice.scheduler) if begins or s.gang.attempt.is_open else s.status


def _placements_wake(s: Situation) -> tuple[datetime, ...]:
    """When to look again at those who place the pods."""
    return tuple(moment for placement in s.placements for moment in placement.wakes())


def name_credentials(s: Situation, _: Decision | None) -> JobStatus:
    """The status with another name for the job's Secret, if the present one turned out to be taken.

    The operator may not read Secrets: only a creation that succeeded shows that a Secret is its own. Pods are made
    after such a creation, so the Secret that they mount is noted as the job's own; later attempts use it again.
    """
    ledger = s.status.ledger
    if s.secret_is_ours and ledger.credentials_mounted == ledger.credentials:
        return s.status
    if s.secret_is_ours:
        return s.status.noted(credentials_mounted=ledger.credentials)
    if s.secret not in s.observed.taken_secrets:
        return s.status
    return s.status.noted(credentials=ledger.credentials + 1)


def not_ahead(status: JobStatus, now: datetime) -> JobStatus:
    """The status with no later time than now for anything that new pods wait after: the wait counts from now.

    An operator whose clock was ahead has noted such times.
    """
    ledger, notes = status.ledger, status.ledger.incarnations
    start, delay = ledger.restart_not_before, timedelta(seconds=ledger.restart_delay_seconds)
    if notes is not None:
        lost = notes.launcher_lost
        notes = notes.model_copy(
            update={
                "losses": _passed_ledger_notes(notes.losses, now),
                "launcher_lost": min(lost, now) if lost else None,
            }
        )
    return status.noted(
        restart_not_before=min(start, now + delay) if start else None,
        ended_pods=_passed_ledger_notes(ledger.ended_pods, now),
        incarnations=notes,
    )


def _begin_attempt(s: Situation, decision: Begin) -> JobStatus:
    # The deadline counts from the job's creation, not from when an operator first looked.
    fresh = decision.reason == "Started" and s.status.condition("Suspended") is None
    since = min(s.job.created, s.now) if fresh else s.now
    begun = s.status.model_copy(
        update={"attempt": decision.attempt, "start_time": s.status.start_time or s.now},
    )
    group = "PodGroup" if s.job.queue else None
    return _without_pods(begun).noted(
        **OUT_OF_LINE,
        attempt_workers=s.wanted_workers,
        begun_with=s.job.spec.fixed,
        queued_as="Workload" if decision.reason == "Admitted" else group,
        active_since=s.status.ledger.active_since if decision.reason == "Changed" else since,
        restart_not_before=None,
        restart_delay_seconds=0,
    )


def _halt_attempt(s: Situation) -> JobStatus:
    """Without pods; those that outlive attempts begin anew, too."""
    since = s.status.ledger.active_since
    active = int((s.now - since).total_seconds()) if since is not None else 0
    seconds = s.status.ledger.active_seconds + max(active, 0)
    halted = s.status.noted(active_since=None, active_seconds=seconds, begun_with=None, **OUT_OF_LINE)
    return halted.noted(ended_pods=(), data_scale=None)


def _enqueue_job(s: Situation, decision: Enqueue) -> JobStatus:
    disrupted = 1 if decision.disrupted and s.attempt > 0 else 0
    counted = s.status.model_copy(update={"disruptions": s.status.disruptions + disrupted})
    return _halt_attempt(replace(s, status=counted)).noted(queued_as="Workload", begun_with=s.job.spec.fixed)


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
    return _without_pods(restarted).noted(
        attempt_workers=s.wanted_workers,
        restart_not_before=s.now + timedelta(seconds=delay) if delay > FIRST_DELAY_S else None,
        restart_delay_seconds=delay,
    )


def _without_pods(status: JobStatus) -> JobStatus:
    """The status at the start of an attempt: of its pods none is there, and an elastic job has no world yet."""
    notes, elastic = status.ledger.incarnations, status.elastic
    if notes is None:
        return status
    sums = {"lost_steps": elastic.lost_steps, "recoveries": elastic.recoveries} if elastic is not None else {}
    apart = elastic.model_copy(update={"formation": 0, "ranks": 0}) if elastic is not None else None
    fresh = status.model_copy(update={"elastic": apart})
    none = {"present": (), "joined": (), "launcher_present": False, "launcher_lost": None}
    return fresh.noted(incarnations=notes.model_copy(update={**none, **sums}))


def _delay_s(s: Situation) -> int:
    """Doubling from attempt to attempt, from the start again after one that ran steadily. See FIRST_DELAY_S."""
    running = s.status.condition("Running")
    steady = (
        running is not None
        and running.status == "True"
        and s.now - running.last_transition_time >= timedelta(seconds=STEADY_S)
    )
    previous = s.status.ledger.restart_delay_seconds
    return FIRST_DELAY_S if steady or previous == 0 else min(previous * 2, LONGEST_DELAY_S)


def _passed_ledger_notes(notes: Iterable[Note], now: datetime) -> tuple[Note, ...]:
    return tuple(note if note.time <= now else note.model_copy(update={"time": now}) for note in notes)


CREDENTIALS = Policy(note=name_credentials)
PLACEMENTS = Policy(note=note_gang, wakes=_placements_wake)
