"""runPolicy.ttlSecondsAfterFinished: the job itself goes, and all it owns with it."""

from __future__ import annotations

from datetime import datetime, timedelta

from ..status.situation import Situation


def expiry(s: Situation) -> datetime | None:
    """When a finished job is to be deleted; None: never."""
    ttl = s.job.spec.run_policy.ttl_seconds_after_finished
    if ttl is None or s.status.completion_time is None:
        return None
    return s.status.completion_time + timedelta(seconds=ttl)
