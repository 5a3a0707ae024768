"""runPolicy.activeDeadlineSeconds: waiting counts, suspension does not."""

from __future__ import annotations

from datetime import timedelta

from ..status.situation import Situation
from .decision import NO_DECISION, Finish, PolicyResult
from .outcome import failure_of_slowest

REASON = "DeadlineExceeded"


def active_deadline(s: Situation) -> PolicyResult:
    """The job fails when it has been active for longer than it may."""
    limit = s.job.spec.run_policy.active_deadline_seconds
    if limit is None or s.status.ledger.active_since is None:
        return NO_DECISION
    due = s.status.ledger.active_since + timedelta(seconds=limit - s.status.ledger.active_seconds)
    if s.now < due:
        return PolicyResult(requeue_at=due)
    message = f"the job was active for longer than activeDeadlineSeconds: {limit}{_what_it_did(s)}"
    return PolicyResult(Finish("Failed", REASON, message, failure_of_slowest(s, REASON, message)))


def _what_it_did(s: Situation) -> str:
    """What the job was waiting for, if it did not run: afterwards nobody could tell."""
    running = s.status.condition("Running")
    if running is None or running.status == "True" or not running.message:
        return ""
    return f"; it did not run ({running.reason}: {running.message})"
