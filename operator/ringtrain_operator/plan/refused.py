"""Gangs of which the API admits a part and refuses the rest, as a quota does: what they have is given back.

Nothing counts. The job waits without pods and tries again after as long as it has waited so far, within bounds. Of
jobs that hold parts of a quota each tries at another time, so that one finds room for all of its pods.
"""

from __future__ import annotations

from datetime import timedelta

from ..status.model import JobStatus
from ..status.situation import Situation
from ..status.waiting import refused_because
from .decision import NO_DECISION, Decision, GiveWay, Place, Policy, PolicyResult
from .incomplete import GRACE_S, jitter_s, tries_at


def refused(s: Situation) -> PolicyResult:
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
    return s.status.noted(refused_since=since)


def is_admitted_in_part(s: Situation) -> bool:
    """Whether the gang has pods, and others without which it can't begin are refused."""
    if s.attempt == 0 or s.status.finished or s.is_without_pods or s.gang_began or not s.pods:
        return False
    whole = s.launcher is not None and len(s.workers) >= s.workers_needed
    return not whole and any(refusal.ref.kind == "Pod" for refusal in s.gang_refusals)


REFUSED = Policy(refused, note_refused)
