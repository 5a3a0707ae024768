"""Gangs of which a part is placed and the rest finds no room, where no scheduler places all pods or none.

Such jobs stand in a line. The first keeps what it has; the others give theirs back and wait without pods until it
is their turn. So of any number of jobs that hold parts of what they need one is always completed.
"""

from __future__ import annotations

import zlib
from datetime import datetime, timedelta

from ..observe.model import Contender
from ..status.model import JobStatus
from ..status.situation import Situation
from .decision import NO_DECISION, Decision, Enqueue, Finish, GiveWay, Halt, Place, PolicyResult

# A scheduler may need a moment for pods that fit: an end of other pods is on its way.
GRACE_S = 5
# Jobs that were made in one moment do not all give way in one moment.
JITTER_S = 5
# How often a job that is too large looks whether the cluster has grown.
GROWTH_S = 60


def incomplete(s: Situation) -> PolicyResult:
    """A gang that is not placed whole gives its places back when others come first, or when it never fits."""
    if s.attempt == 0:
        return NO_DECISION
    if s.status.ledger.queued_since is not None:
        return _queued(s)
    if s.status.ledger.gang_scheduler is not None or not is_stuck(s):
        return NO_DECISION
    patience = timedelta(seconds=s.job.spec.scheduling.timeout_seconds)
    since = min((pod.unschedulable_since for pod in s.pods if pod.unschedulable_since is not None), default=s.now)
    grace, others = timedelta(seconds=GRACE_S + _jitter_s(s)), s.observed.contention.waiting > 0
    if _too_large(s):
        return _after(s, since + (grace if others else patience), GiveWay(None, too_large=True))
    place = s.status.ledger.line_since or s.job.created
    if not _is_first(s, place):
        return _after(s, since + grace, GiveWay(place))
    if others:
        return _after(s, _last_gain(s, since) + patience, GiveWay(s.now))
    return NO_DECISION


def note_line(s: Situation, decision: Decision | None) -> JobStatus:
    """The status with whether the job stands in the line: from when it is stuck until it is placed."""
    ledger = s.status.ledger
    over = isinstance(decision, Halt | Enqueue | Finish) or s.status.finished
    if over or s.attempt == 0 or ledger.queued_since is not None:
        return s.status
    if s.placed or s.gang_began or ledger.gang_scheduler is not None:
        return s.status.noted(line_since=None, too_large=False)
    if not is_stuck(s):
        return s.status
    too_large = _too_large(s)
    return s.status.noted(
        line_since=None if too_large else ledger.line_since or s.job.created, too_large=too_large
    )


def is_stuck(s: Situation) -> bool:
    """Whether pods without which the gang can't begin find no node."""
    return (
        not s.gang_began
        and not s.is_without_pods
        and any(pod.unschedulable_since is not None for pod in s.pods)
        and not s.placed
    )


def _queued(s: Situation) -> PolicyResult:
    place = s.status.ledger.line_since or s.job.created
    if not s.status.ledger.too_large:
        return PolicyResult(Place(place)) if _is_first(s, place) else NO_DECISION
    if not _too_large(s):
        return PolicyResult(Place(place))
    return PolicyResult(requeue_at=s.now + timedelta(seconds=GROWTH_S + _jitter_s(s)))


def _is_first(s: Situation, place: datetime) -> bool:
    first = s.observed.contention.first
    return first is None or Contender(place, s.job.uid) < first


def _too_large(s: Situation) -> bool:
    """Whether the empty cluster would not have the devices that the gang needs, as far as nodes are known."""
    needed = s.job.worker_devices
    if s.observed.nodes is None or not needed:
        return False
    room = sum(min(node.get(name, 0) // amount for name, amount in needed.items()) for node in s.observed.nodes)
    return room < s.workers_needed


def _last_gain(s: Situation, since: datetime) -> datetime:
    """When the gang last got a place."""
    return max((pod.scheduled_at for pod in s.pods if pod.scheduled_at is not None), default=since)


def _after(s: Situation, due: datetime, decision: GiveWay) -> PolicyResult:
    return PolicyResult(decision) if s.now >= due else PolicyResult(requeue_at=due)


def _jitter_s(s: Situation) -> int:
    """Of this job in this attempt always the same, so that a look more or less changes nothing."""
    return zlib.crc32(f"{s.job.uid}/{s.attempt}".encode()) % (JITTER_S + 1)
