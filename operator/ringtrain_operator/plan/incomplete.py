"""Gangs of which a part is placed and the rest finds no room, where no scheduler places all pods or none.

Such jobs stand in a line with those that compete for the same. The first keeps what it has; the others give
theirs back and wait without pods until it is their turn, or until one of them fits into what the first can't use.
So of any number of jobs that hold parts of what they need one is always completed, and no device is idle for long
that a whole gang could use. Decision 52 has the bounds.

Likewise a gang of which the API admits a part and refuses the rest, as a quota does: what it has is given back.
Nothing counts. The job waits without pods and tries again after as long as it has waited so far, within bounds. Of
jobs that hold parts of a quota each tries at another time, so that one finds room for all of its pods.
"""

import zlib
from dataclasses import replace
from datetime import datetime, timedelta

from ..placement.line import ROOM, PlacementContender, lacking_devices
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
from ..status.waiting import refused_because
from .ledger import OUT_OF_LINE, placed_at

# A scheduler may need a moment for pods that fit: an end of other pods is on its way.
GRACE_S = 5
# Jobs that were made in one moment do not all give way in one moment.
JITTER_S = 5
# How often a job that waits looks whether the cluster has grown.
GROWTH_S = 60
# Who tried in vain tries again after as long as it has waited so far, within these bounds.
SOONEST_TRY_S, LATEST_TRY_S = 10, 300


def incomplete_gang(s: Situation) -> PolicyResult:
    """A gang that is not placed whole gives its places back when others come first, or when it never fits."""
    if s.attempt == 0:
        return NO_DECISION
    if s.status.ledger.queued_since is not None:
        return NO_DECISION if s.status.ledger.refused else _queued_gang(s)
    if s.status.ledger.gang_scheduler is not None or not is_stuck(s):
        return NO_DECISION
    since, me, line = _stuck_since(s), planned_contender(s), s.observed.contention
    grace, patience = timedelta(seconds=GRACE_S + jitter_s(s)), s.job.spec.scheduling.timeout_seconds
    if _too_large(s):
        due = since + (grace if line.rivals(me) else timedelta(seconds=patience))
        return _requeue_after(s, due, GiveWay(None, too_large=True))
    if not me.wants:
        last = gang_gives_way(s)
        is_wanted = any(pod.place.node for pod in s.pods) and last.place is not None and line.rivals(last.place)
        return _requeue_after(s, since + grace, last) if is_wanted else NO_DECISION
    if line.ahead_of(me):
        return _requeue_after(s, since + grace, GiveWay(me))
    return _first_in_line(s, me)


def note_line(s: Situation, decision: Decision | None) -> JobStatus:
    """The status with whether the job stands in the line: from when it is stuck until it is placed."""
    ledger = s.status.ledger
    over = isinstance(decision, Halt | Enqueue | Finish) or s.finished
    if over or s.attempt == 0 or ledger.queued_since is not None:
        return s.status
    if isinstance(decision, Begin) and decision.reason in ("Started", "Resumed", "Changed") and _is_reserved(s):
        return s.status.noted(queued_since=s.now, **placed_at(s, _gang_has_begun(s)))
    if s.placed or s.gang_began or ledger.gang_scheduler is not None:
        return s.status.noted(**OUT_OF_LINE)
    if not is_stuck(s):
        return s.status.noted(line_since=None) if s.gang_refusals else s.status
    too_large, me = _too_large(s), planned_contender(s)
    if too_large or not me.wants:
        return s.status.noted(line_since=None, line_reserves=False, too_large=too_large)
    return s.status.noted(**{**placed_at(s, me), "line_reserves": _reserves(s, me)}, too_large=False)


def is_stuck(s: Situation) -> bool:
    """Whether pods without which the gang can't begin find no node."""
    return (
        not s.gang_began
        and not s.is_without_pods
        and any(pod.place.unschedulable_since is not None for pod in s.pods)
        and not s.placed
    )


def planned_contender(s: Situation) -> PlacementContender:
    """The job in the line. It wants nothing there if the end of other pods would not help one of its own."""
    wants, devices = dict(s.status.ledger.line_wants), s.job.worker_devices
    # Of a thousand pods most have the same words.
    if words := {pod.wait.message for pod in s.pods if pod.place.unschedulable_since is not None}:
        lacks = [lacking_devices(said, devices) for said in words]
        wants = dict.fromkeys(frozenset().union(*lacks), 0) | devices if all(lacks) else {}
    since = s.status.ledger.line_since or s.job.created
    return PlacementContender(since, s.job.uid, f"{s.job.namespace}/{s.job.name}", wants, s.workers_needed)


def gang_gives_way(s: Situation) -> GiveWay:
    """Whatever it waits for, others may have what it holds. One that no other's end would help goes last."""
    me = planned_contender(s)
    everything = {ROOM: 0} | s.job.worker_devices
    return GiveWay(me if me.wants else replace(me, wants=everything, since=s.now))


def tries_at(queued_since: datetime | None, waits_since: datetime | None) -> datetime | None:
    """When a job that waits without pods may try to find room, whoever is ahead; None: it has pods."""
    if queued_since is None:
        return None
    waited = queued_since - (waits_since or queued_since)
    return queued_since + min(max(waited, timedelta(seconds=SOONEST_TRY_S)), timedelta(seconds=LATEST_TRY_S))


def _first_in_line(s: Situation, me: PlacementContender) -> PolicyResult:
    """The first in line keeps what it has while its turn lasts, and longer where nobody waits for it."""
    start, length = _gang_turn(s)
    if s.observed.contention.rivals(me) and start + length <= s.now:
        return PolicyResult(GiveWay(replace(me, since=s.now)))
    start, length = _present_turn(s)
    middle = start + length / 2
    return PolicyResult(requeue_at=middle if s.now < middle else start + length)


def _queued_gang(s: Situation) -> PolicyResult:
    me, line, nodes = planned_contender(s), s.observed.contention, s.observed.nodes
    look_again = PolicyResult(requeue_at=s.now + timedelta(seconds=GROWTH_S + jitter_s(s)))
    if s.status.ledger.too_large:
        return look_again if _too_large(s) else PolicyResult(Place(me.since))
    if not line.ahead_of(me):
        return PolicyResult(Place(me.since))
    if line.is_held_up(me) or not me.fits(nodes, line.used):
        return look_again
    due = _may_try_at(s, tries_at(s.status.ledger.queued_since, s.status.ledger.waits_since) or s.now)
    if s.now < due:
        return PolicyResult(requeue_at=due)
    sooner = (one for one in line.ahead_of(me) if one.tries_at and _may_try_at(s, one.tries_at) <= s.now)
    if any(one.fits(nodes, line.used) and not line.is_held_up(one) for one in sooner):
        return look_again
    return PolicyResult(Place(me.since))


def _may_try_at(s: Situation, own: datetime) -> datetime:
    """Not before those ahead had time to take what was freed last."""
    freed = s.observed.contention.freed_at
    return own if freed is None else max(own, freed + timedelta(seconds=GRACE_S))


def _gang_has_begun(s: Situation) -> PlacementContender:
    """The job as it begins, before it has pods."""
    return replace(planned_contender(s), wants=s.job.worker_devices)


def _is_reserved(s: Situation) -> bool:
    """Whether a job in the line has waited for so long that none may begin on what it waits for."""
    me = _gang_has_begun(s)
    return any(one.reserves for one in s.observed.contention.ahead_of(me))


def _reserves(s: Situation, me: PlacementContender) -> bool:
    """Whether the job is first, and in the second half of its turn: until then others may pass it."""
    start, length = _present_turn(s)
    return not s.observed.contention.ahead_of(me) and s.now >= start + length / 2


def _gang_turn(s: Situation) -> tuple[datetime, timedelta]:
    """Since when the first in line keeps what it has, and for how long although others wait.

    For no less than it had waited by then: once a turn is as long as the longest run of those that it waits for.
    """
    start = max(
        (pod.place.scheduled_at for pod in s.pods if pod.place.scheduled_at is not None), default=_stuck_since(s)
    )
    return start, _gang_turn_length(s, start)


def _present_turn(s: Situation) -> tuple[datetime, timedelta]:
    """The same of the present turn of a job that nobody who waits wants to follow."""
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
    """Whether the empty cluster would not have the devices that the gang needs, as far as nodes are known."""
    return not replace(planned_contender(s), wants=s.job.worker_devices).fits(s.observed.nodes, {})


def _requeue_after(s: Situation, due: datetime, decision: GiveWay) -> PolicyResult:
    return PolicyResult(decision) if s.now >= due else PolicyResult(requeue_at=due)


def jitter_s(s: Situation) -> int:
    """Of this job in this attempt always the same, so that a look more or less changes nothing."""
    return zlib.crc32(f"{s.job.uid}/{s.attempt}".encode()) % (JITTER_S + 1)


def refused_gang(s: Situation) -> PolicyResult:
    """A gang that is not admitted whole gives its pods back, and waits without any."""
    ledger = s.status.ledger
    if ledger.queued_since is not None and ledger.refused:
        due = (tries_at(ledger.queued_since, ledger.waits_since) or s.now) + timedelta(seconds=jitter_s(s))
        return PolicyResult(Place(s.job.created)) if s.now >= due else PolicyResult(requeue_at=due)
    if ledger.refused_since is None or not is_admitted_in_part(s):
        return NO_DECISION
    due = ledger.refused_since + timedelta(seconds=GRACE_S + jitter_s(s))
    if s.now < due:
        return PolicyResult(requeue_at=due)
    return PolicyResult(GiveWay(None, refused=refused_because(s.gang_refusals).message))


def note_refused(s: Situation, _: Decision | None) -> JobStatus:
    """The status with since when a part of the gang is refused."""
    since = (s.status.ledger.refused_since or s.now) if is_admitted_in_part(s) else None
    return s.status if since == s.status.ledger.refused_since else s.status.noted(refused_since=since)


def is_admitted_in_part(s: Situation) -> bool:
    """Whether the gang has pods, and others without which it can't begin are refused."""
    if s.attempt == 0 or s.finished or s.is_without_pods or s.gang_began or not s.pods:
        return False
    whole = s.launcher is not None and len(s.workers) >= s.workers_needed
    return not whole and any(refusal.ref.kind == "Pod" for refusal in s.gang_refusals)


INCOMPLETE = Policy(incomplete_gang, note_line)
REFUSED = Policy(refused_gang, note_refused)
