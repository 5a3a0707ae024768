"""How many data workers there are to be: what the spec says, or what autoscale makes of it."""

from __future__ import annotations

from datetime import datetime

from ..status.data_workers import ready_data_workers, wait_fraction
from ..status.model import JobStatus
from ..status.situation import Situation
from .autoscale import Measured, first_scale, next_scale, wakes_at
from .decision import Decision, Enqueue, Finish, Halt


def note_data_scale(s: Situation, decision: Decision | None) -> JobStatus:
    """The status with how many data workers autoscale wants now."""
    data, scale = s.job.spec.data_workers, s.status.ledger.data_scale
    over = s.status.finished or s.is_without_pods or isinstance(decision, Halt | Enqueue | Finish)
    if over or s.attempt == 0:
        return s.status
    if data is None or data.autoscale is None:
        return s.status.noted(data_scale=None)
    workers = s.status.ledger.attempt_workers
    if scale is None or scale.asked != data.replicas:
        return s.status.noted(data_scale=first_scale(data, workers))
    complete = ready_data_workers(s) >= s.wanted_data_workers == scale.replicas
    seen = Measured(wait_fraction(s), complete, workers)
    return s.status.noted(data_scale=next_scale(data.autoscale, scale, seen, s.now))


def data_workers_wake_at(s: Situation) -> tuple[datetime, ...]:
    """When the number may change if nothing happens."""
    data, scale = s.job.spec.data_workers, s.status.ledger.data_scale
    if data is None or data.autoscale is None or scale is None or s.status.finished or s.is_without_pods:
        return ()
    due = wakes_at(data.autoscale, scale)
    return (due,) if due is not None and due > s.now else ()
