"""runPolicy.progressDeadlineSeconds: a gang that reports no step for so long is restarted."""

from __future__ import annotations

from datetime import timedelta

from ..status import Failure
from ..status.situation import Situation
from .failure_rules import judge
from .verdict import NO_OPINION, Opinion

REASON = "ProgressDeadlineExceeded"


def progress_deadline(s: Situation) -> Opinion:
    """Judged only by what the launcher says now: an operator that cannot reach it knows nothing about steps."""
    limit = s.job.spec.run_policy.progress_deadline_seconds
    report = s.report
    if limit is None or report is None or report.phase != "Running":
        return NO_OPINION
    last = report.last_progress_time or report.start_time
    if last is None:
        return NO_OPINION
    due = last + timedelta(seconds=limit)
    if s.now < due:
        return Opinion(look_again=due)
    step = (report.progress or {}).get("step")
    message = f"no step was reported for {limit} s; last step: {'none' if step is None else step}"
    return Opinion(judge(s, Failure(attempt=s.attempt, reason=REASON, message=message, time=s.now)))
