"""runPolicy.activeDeadlineSeconds: waiting counts, suspension does not."""

from __future__ import annotations

from datetime import timedelta

from ..status.situation import Situation
from .verdict import NO_OPINION, Finish, Opinion

REASON = "DeadlineExceeded"


def active_deadline(s: Situation) -> Opinion:
    """The job fails when it has been active for longer than it may."""
    limit = s.job.spec.run_policy.active_deadline_seconds
    if limit is None or s.status.active_since is None:
        return NO_OPINION
    due = s.status.active_since + timedelta(seconds=limit - s.status.active_seconds)
    if s.now < due:
        return Opinion(look_again=due)
    return Opinion(Finish("Failed", REASON, f"the job was active for longer than activeDeadlineSeconds: {limit}"))
