"""How many data workers a job needs, by how long its ranks wait for input. Pure; every number is in its notes.

As long as world and spec are the same, the number always stays above one with which ranks waited too long. Each
such number is greater than the one before, and between two of them the number of data workers only falls. So there
are only so many changes, however the load and the measurements behave.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..spec.data_workers import Autoscale, DataWorkers
from ..status.data_workers import ready_data_workers, wait_fraction
from ..status.lasting import DataScale
from ..status.model import JobStatus
from ..status.situation import Situation
from .decision import Decision, Enqueue, Finish, Halt, Policy

# A minute of waiting is no hiccup; what waits less than half of the target for five minutes may have too many.
MORE_AFTER_S = 60
FEWER_AFTER_S = 300


@dataclass(frozen=True)
class Measured:
    """What is known now. `complete`: all data workers that are wanted take part. `workers`: of the world."""

    wait_fraction: float | None
    complete: bool
    workers: int


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


def first_scale(data: DataWorkers, workers: int) -> DataScale:
    """The notes to begin with."""
    return DataScale(replicas=data.replicas, asked=data.replicas, workers=workers)


def next_scale(bounds: Autoscale, scale: DataScale, seen: Measured, now: datetime) -> DataScale:
    """The notes after a look at `now`; `replicas` in them is what is wanted from now on."""
    if seen.workers != scale.workers:  # another world: what was learned does not hold
        scale = scale.model_copy(update={"workers": seen.workers, "too_few": 0, **_NO_TENDENCY})
    within = min(max(scale.replicas, bounds.min_replicas), bounds.max_replicas)
    if within != scale.replicas:
        return scale.model_copy(update={"replicas": within, **_NO_TENDENCY})
    waited = seen.wait_fraction
    if waited is not None and waited > bounds.target_wait_fraction and seen.complete:
        return _too_slow(bounds, scale, waited, now)
    if waited is not None and waited < bounds.target_wait_fraction / 2:
        return _fast_enough(bounds, scale, now)
    return scale.model_copy(update=_NO_TENDENCY)


def wakes_at(bounds: Autoscale, scale: DataScale) -> datetime | None:
    """When the number may change if what is measured stays as it is."""
    if scale.above_since is not None and scale.replicas < bounds.max_replicas:
        return scale.above_since + timedelta(seconds=MORE_AFTER_S)
    if scale.below_since is not None and _fewest(bounds, scale) < scale.replicas:
        return scale.below_since + timedelta(seconds=FEWER_AFTER_S)
    return None


_NO_TENDENCY = {"above_since": None, "below_since": None}


def _too_slow(bounds: Autoscale, scale: DataScale, waited: float, now: datetime) -> DataScale:
    since = scale.above_since or now
    if now - since < timedelta(seconds=MORE_AFTER_S) or scale.replicas >= bounds.max_replicas:
        return scale.model_copy(update={"above_since": since, "below_since": None})
    # Input comes at a rate that grows with the data workers: so many bring the wait down to the target.
    needed = math.ceil(scale.replicas * (1 - bounds.target_wait_fraction) / max(1 - waited, 0.01))
    more = min(max(needed, scale.replicas + 1), 2 * scale.replicas, bounds.max_replicas)
    changed = {"replicas": more, "too_few": max(scale.replicas, scale.too_few), **_NO_TENDENCY}
    return scale.model_copy(update=changed)


def _fast_enough(bounds: Autoscale, scale: DataScale, now: datetime) -> DataScale:
    since = scale.below_since or now
    fewest = _fewest(bounds, scale)
    if now - since < timedelta(seconds=FEWER_AFTER_S) or scale.replicas <= fewest:
        return scale.model_copy(update={"above_since": None, "below_since": since})
    fewer = max(fewest, scale.replicas - max(1, scale.replicas // 4))
    return scale.model_copy(update={"replicas": fewer, **_NO_TENDENCY})


def _fewest(bounds: Autoscale, scale: DataScale) -> int:
    return max(bounds.min_replicas, scale.too_few + 1)


AUTOSCALE = Policy(note=note_data_scale, wakes=data_workers_wake_at)
