"""Policy for gangs of which only some pods can be placed, in a cluster without a gang scheduler.

Such jobs enter a queue with the jobs that compete for the same resources. The first retains its pods. The others delete
theirs and wait until it is their turn, or until one of them fits into resources that the first cannot use. So one of
the jobs that hold partial resources can always complete, and no device that a whole gang could use stays idle for long.
Decision 52 has the bounds.

A gang of which the API admits some pods and refuses the rest, as with a quota, also deletes its pods. Such waits are
not counted. The job tries again after a delay equal to the time that it has waited, within bounds. Jobs that hold parts
of one quota retry at different times, so that one of them gets all of its pods.
"""

import zlib
from dataclasses import replace
from datetime import datetime, timedelta

from ..placement.own_queue import ROOM, PlacementContender, lacking_devices
from ..status.decision import (
    NO_DECISION,
    Begin,
    Decision,
    Enqueue,
    Finish,
    GiveWay,
    Halt,
    Place,
    Policy,
    PolicyResult,
)
from ..status.model import JobStatus
from ..status.situation import Situation
from ..status.waiting import refusal_condition
from .ledger import NOT_QUEUED, queue_fields

# Other pods may be about to end, so the scheduler gets a moment to place pods that fit.
GRACE_S = 5
# Spreads jobs that were created at the same moment.
JITTER_S = 5
# Interval at which a waiting job checks whether the cluster has grown.
GROWTH_S = 60
# Bounds of the delay before a job retries; the delay equals the time that it has waited.
SOONEST_TRY_S, LATEST_TRY_S = 10, 300


def incomplete_gang(s: Situation) -> PolicyResult:
    """Decide whether a partly placed gang must delete its pods, because others come first or it can never fit."""
    if s.attempt == 0:
        return NO_DECISION
    if s.status.ledger.queued_since is not None:
        return NO_DECISION if s.status.ledger.refused else _decide_queued_gang(s)
    if s.status.ledger.gang_scheduler is not None or not is_stuck(s):
        return NO_DECISION
    since, me, line = _stuck_since(s), planned_contender(s), s.observed.contention
    grace, patience = timedelta(seconds=GRACE_S + jitter_s(s)), s.job.spec.scheduling.timeout_seconds
    if _too_large(s):
        due = since + (grace if line.rivals(me) else timedelta(seconds=patience))
        return _requeue_after(s, due, GiveWay(None, too_large=True))
    if not me.wants:
        last = give_way_decision(s)
        is_wanted = any(pod.place.node for pod in s.pods) and last.place is not None and line.rivals(last.place)
        return _requeue_after(s, since + grace, last) if is_wanted else NO_DECISION
    if line.ahead_of(me):
        return _requeue_after(s, since + grace, GiveWay(me))
    return _decide_first_in_queue(s, me)


def record_queue_place(s: Situation, decision: Decision | None) -> JobStatus:
    """Record the job's place in the queue while some of its pods cannot be placed."""
    ledger = s.status.ledger
    over = isinstance(decision, Halt | Enqueue | Finish) or s.finished
    if over or s.attempt == 0 or ledger.queued_since is not None:
        return s.status
    if isinstance(decision, Begin) and decision.reason in ("Started", "Resumed", "Changed") and _is_reserved(s):
        return s.status.with_ledger(queued_since=s.now, **queue_fields(s, _starting_contender(s)))
    if s.placed or s.gang_began or ledger.gang_scheduler is not None:
        return s.status.with_ledger(**NOT_QUEUED)
    if not is_stuck(s):
        return s.status.with_ledger(line_since=None) if s.gang_refusals else s.status
    too_large, me = _too_large(s), planned_contender(s)
    if too_large or not me.wants:
        return s.status.with_ledger(line_since=None, line_reserves=False, too_large=too_large)
    return s.status.with_ledger(**{**queue_fields(s, me), "line_reserves": _reserves(s, me)}, too_large=False)


def is_stuck(s: Situation) -> bool:
    """Return whether pods that the gang needs for its start are unschedulable."""
    return (
        not s.gang_began
        and not s.is_without_pods
        and any(pod.place.unschedulable_since is not None for pod in s.pods)
        and not s.placed
    )


def planned_contender(s: Situation) -> PlacementContender:
    """Return the job's queue entry. It wants no resources if a pod could not use what other pods release."""
    wants, devices = dict(s.status.ledger.line_wants), s.job.worker_devices
    # Most of a thousand pods have the same message.
    if words := {pod.wait.message for pod in s.pods if pod.place.unschedulable_since is not None}:
        lacks = [lacking_devices(message, devices) for message in words]
        wants = dict.fromkeys(frozenset().union(*lacks), 0) | devices if all(lacks) else {}
    since = s.status.ledger.line_since or s.job.created
    return PlacementContender(since, s.job.uid, f"{s.job.namespace}/{s.job.name}", wants, s.workers_needed)


def give_way_decision(s: Situation) -> GiveWay:
    """Decide to delete all pods. The job goes to the end of the queue if other jobs cannot free what it needs."""
    me = planned_contender(s)
    everything = {ROOM: 0} | s.job.worker_devices
    return GiveWay(me if me.wants else replace(me, wants=everything, since=s.now))


def next_try_time(queued_since: datetime | None, waits_since: datetime | None) -> datetime | None:
    """Return when a job without pods may try to start, whatever its place in the queue; None if it has pods."""
    if queued_since is None:
        return None
    waited = queued_since - (waits_since or queued_since)
    return queued_since + min(max(waited, timedelta(seconds=SOONEST_TRY_S)), timedelta(seconds=LATEST_TRY_S))


def _decide_first_in_queue(s: Situation, me: PlacementContender) -> PolicyResult:
    """Decide whether the first job in the queue must delete its pods, because its time to wait with pods is over and
    other jobs wait."""
    start, length = _gang_turn(s)
    if s.observed.contention.rivals(me) and start + length <= s.now:
        return PolicyResult(GiveWay(replace(me, since=s.now)))
    start, length = _current_turn(s)
    middle = start + length / 2
    return PolicyResult(requeue_at=middle if s.now < middle else start + length)


def _decide_queued_gang(s: Situation) -> PolicyResult:
    me, line, nodes = planned_contender(s), s.observed.contention, s.observed.nodes
    look_again = PolicyResult(requeue_at=s.now + timedelta(seconds=GROWTH_S + jitter_s(s)))
    if s.status.ledger.too_large:
        return look_again if _too_large(s) else PolicyResult(Place(me.since))
    if not line.ahead_of(me):
        return PolicyResult(Place(me.since))
    if line.is_held_up(me) or not me.fits(nodes, line.used):
        return look_again
    due = _earliest_try_time(s, next_try_time(s.status.ledger.queued_since, s.status.ledger.waits_since) or s.now)
    if s.now < due:
        return PolicyResult(requeue_at=due)
    sooner = (one for one in line.ahead_of(me) if one.tries_at and _earliest_try_time(s, one.tries_at) <= s.now)
    if any(one.fits(nodes, line.used) and not line.is_held_up(one) for one in sooner):
        return look_again
    return PolicyResult(Place(me.since))


def _earliest_try_time(s: Situation, own: datetime) -> datetime:
    """Return `own`, but not before jobs ahead in the queue had time to use the last released resources."""
    freed = s.observed.contention.freed_at
    return own if freed is None else max(own, freed + timedelta(seconds=GRACE_S))


def _starting_contender(s: Situation) -> PlacementContender:
    """Return the queue entry of a job that is about to start and has no pods yet."""
    return replace(planned_contender(s), wants=s.job.worker_devices)


def _is_reserved(s: Situation) -> bool:
    """Return whether a job ahead in the queue reserves the resources that this job needs to start."""
    me = _starting_contender(s)
    return any(one.reserves for one in s.observed.contention.ahead_of(me))


def _reserves(s: Situation, me: PlacementContender) -> bool:
    """Return whether the job is first in the queue and at least half of its current turn is over (see `_gang_turn`).
    Then no other job may start before it."""
    start, length = _current_turn(s)
    return not s.observed.contention.ahead_of(me) and s.now >= start + length / 2


def _gang_turn(s: Situation) -> tuple[datetime, timedelta]:
    """Return start and length of the job's turn, a period in which the job is first in the queue and its pods may wait.

    The length is at least the time that the job had waited before. So turns become as long as the longest run of the
    competing jobs.
    """
    start = max(
        (pod.place.scheduled_at for pod in s.pods if pod.place.scheduled_at is not None), default=_stuck_since(s)
    )
    return start, _gang_turn_length(s, start)


def _current_turn(s: Situation) -> tuple[datetime, timedelta]:
    """Return start and length of the current period in which the job is first in the queue and its pods may wait. A new
    period follows if no other job competes."""
    start, length = _gang_turn(s)
    while start + length <= s.now:
        start += length
        length = _gang_turn_length(s, start)
    return start, length


def _gang_turn_length(s: Situation, start: datetime) -> timedelta:
    return max(timedelta(seconds=s.job.spec.scheduling.timeout_seconds), start - (s.status.ledger.waits_since or start))


def _stuck_since(s: Situation) -> datetime:
    return min(
        (pod.place.unschedulable_since for pod in s.pods if pod.place.unschedulable_since is not None), default=s.now
    )


def _too_large(s: Situation) -> bool:
    """Return whether the gang needs more devices than all nodes have; false if the nodes are unknown."""
    return not replace(planned_contender(s), wants=s.job.worker_devices).fits(s.observed.nodes, {})


def _requeue_after(s: Situation, due: datetime, decision: GiveWay) -> PolicyResult:
    return PolicyResult(decision) if s.now >= due else PolicyResult(requeue_at=due)


def jitter_s(s: Situation) -> int:
    """Return a delay of some seconds, which is always the same for one attempt of a job."""
    return zlib.crc32(f"{s.job.uid}/{s.attempt}".encode()) % (JITTER_S + 1)


def refused_gang(s: Situation) -> PolicyResult:
    """Decide to delete the pods of a gang for a while, if the API admits only a part of them (quota)."""
    ledger = s.status.ledger
    if ledger.queued_since is not None and ledger.refused:
        due = (next_try_time(ledger.queued_since, ledger.waits_since) or s.now) + timedelta(seconds=jitter_s(s))
        return PolicyResult(Place(s.job.created)) if s.now >= due else PolicyResult(requeue_at=due)
    if ledger.refused_since is None or not is_admitted_in_part(s):
        return NO_DECISION
    due = ledger.refused_since + timedelta(seconds=GRACE_S + jitter_s(s))
    if s.now < due:
        return PolicyResult(requeue_at=due)
    return PolicyResult(GiveWay(None, refused=refusal_condition(s.gang_refusals).message))


def record_refused_since(s: Situation, _: Decision | None) -> JobStatus:
    """Record the time since which the API refuses some of the gang's pods."""
    since = (s.status.ledger.refused_since or s.now) if is_admitted_in_part(s) else None
    return s.status if since == s.status.ledger.refused_since else s.status.with_ledger(refused_since=since)


def is_admitted_in_part(s: Situation) -> bool:
    """Return whether some of the gang's pods exist and the API refuses others that it needs for its start."""
    if s.attempt == 0 or s.finished or s.is_without_pods or s.gang_began or not s.pods:
        return False
    whole = s.launcher is not None and len(s.workers) >= s.workers_needed
    return not whole and any(refusal.ref.kind == "Pod" for refusal in s.gang_refusals)


INCOMPLETE = Policy(incomplete_gang, record_queue_place)
REFUSED = Policy(refused_gang, record_refused_since)
