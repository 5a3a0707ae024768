"""A change of worker.replicas: the gang restarts with the new world, which does not count as a failure.

In an elastic job workers join and leave within the attempt.
"""

from __future__ import annotations

from ..status.situation import Situation
from .decision import NO_DECISION, PolicyResult, Resize, Restart


def scale(s: Situation) -> PolicyResult:
    """The present attempt was made for another number of workers than the spec now asks for."""
    if s.attempt == 0 or s.status.ledger.attempt_workers == s.wanted_workers:
        return NO_DECISION
    if s.job.spec.elastic is not None:
        return PolicyResult(Resize(s.wanted_workers))
    message = f"worker.replicas changed from {s.status.ledger.attempt_workers} to {s.job.num_workers}"
    return PolicyResult(Restart("Scaled", message, delayed=False))
