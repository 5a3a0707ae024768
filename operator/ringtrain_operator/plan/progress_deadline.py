"""runPolicy.progressDeadlineSeconds: a running gang that reports no step for so long is restarted."""

from __future__ import annotations

from datetime import timedelta

from ..status.situation import Situation
from .decision import NO_DECISION, PolicyResult
from .failure_rules import judge
from .outcome import failure_of_slowest

REASON = "ProgressDeadlineExceeded"


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
    return PolicyResult(judge(s, failure_of_slowest(s, REASON, message)))
