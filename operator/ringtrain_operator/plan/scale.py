"""A change of worker.replicas: the gang restarts with the new world, which does not count as a failure."""

from __future__ import annotations

from ..status.situation import Situation
from .verdict import NO_OPINION, Opinion, Restart


def scale(s: Situation) -> Opinion:
    """The present attempt was made for another number of workers than the spec now asks for."""
    if s.attempt == 0 or s.status.attempt_workers == s.job.num_workers:
        return NO_OPINION
    message = f"worker.replicas changed from {s.status.attempt_workers} to {s.job.num_workers}"
    return Opinion(Restart("Scaled", message, delayed=False))
