"""Starting, suspending and resuming."""

from __future__ import annotations

from ..status.situation import Situation
from .verdict import NO_OPINION, Begin, Halt, Opinion


def suspension(s: Situation) -> Opinion:
    """A suspended job has no pods; a resumed one goes on with a new attempt, which does not count."""
    suspended = s.status.is_true("Suspended")
    if s.job.spec.run_policy.suspend:
        return NO_OPINION if suspended else Opinion(Halt())
    if not suspended and s.attempt > 0:
        return NO_OPINION
    # Pods without a status: someone restored the job and lost its past. Their attempts are not taken up again.
    newest = max((pod.attempt for pod in s.observed.pods), default=0)
    return Opinion(Begin(max(s.attempt, newest) + 1, "Resumed" if suspended else "Started"))
