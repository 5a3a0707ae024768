"""How long a job may be active (waiting counts, suspension does not), and how long without a step."""

from __future__ import annotations

from datetime import timedelta

from ..status.decision import NO_DECISION, Finish, Policy, PolicyResult
from ..status.situation import Situation
from .failure_rules import judge
from .outcome import failure_of_slowest

DEADLINE_EXCEEDED = "DeadlineExceeded"
PROGRESS_EXCEEDED = "ProgressDeadlineExceeded"


def active_deadline(s: Situation) -> PolicyResult:
    """The job fails when it has been active for longer than it may."""
    limit = s.job.spec.run_policy.active_deadline_seconds
    if limit is None or s.status.ledger.active_since is None:
        return NO_DECISION
    due = s.status.ledger.active_since + timedelta(seconds=limit - s.status.ledger.active_seconds)
    if s.now < due:
        return PolicyResult(requeue_at=due)
    message = f"the job was active for longer than activeDeadlineSeconds: {limit}{_what_it_did(s)}"
    failure = failure_of_slowest(s, DEADLINE_EXCEEDED, message)
    return PolicyResult(Finish("Failed", DEADLINE_EXCEEDED, message, failure))


def _what_it_did(s: Situation) -> str:
    """What the job was waiting for, if it did not run: afterwards nobody could tell."""
    running = s.status.condition("Running")
    if running is None or running.status == "True" or not running.message:
        return ""
    return f"; it did not run ({running.reason}: {running.message})"


def progress_deadline(s: Situation) -> PolicyResult:
    """Judged only by what the launcher says now: an operator that cannot reach it knows nothing about steps."""
    limit = s.job.spec.run_policy.progress_deadline_seconds
    report = s.report
    if limit is None or report is None or report.phase != "Running":
        return NO_DECISION
    # The last step, or when all ranks were there: pulling images and queueing are no lack of progress.
    last = max((moment for moment in (report.running_since, report.last_progress_time) if moment), default=None)
    if last is None:
        return NO_DECISION
    due = last + timedelta(seconds=limit)
    if s.now < due:
        return PolicyResult(requeue_at=due)
    if s.now - timedelta(seconds=s.observed.launcher_age_s) < due:  # a step may have been reported since
        return PolicyResult(requeue_at=s.now + timedelta(seconds=1))
    step = (report.progress or {}).get("step")
    message = f"no step was reported for {limit} s; last step: {'none' if step is None else step}"
    return PolicyResult(judge(s, failure_of_slowest(s, PROGRESS_EXCEEDED, message)))


ACTIVE_DEADLINE = Policy(active_deadline)
PROGRESS_DEADLINE = Policy(progress_deadline)
