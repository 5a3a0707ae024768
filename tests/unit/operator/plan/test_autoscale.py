"""The number of data workers settles on what the ranks need, whatever the load."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtrain_operator.spec.data_workers import Autoscale, DataWorkers
from ringtrain_operator.status.ledger import DataScale
from ringtrain_operator.workers.data_workers import (
    FEWER_AFTER_S,
    MORE_AFTER_S,
    MeasuredDataWorkers,
    initial_scale,
    next_data_workers_scale,
    next_scale_time,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
Load = Callable[[int, datetime], float]


@dataclass
class Played:
    """Data workers that come a while after they are wanted, and ranks whose wait follows from their number."""

    bounds: Autoscale
    load: Load
    begin: int
    late_s: int = 0
    now: datetime = START
    changes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scale = initial_scale(DataWorkers(replicas=self.begin), workers=2)
        self.there, self.wanted_since = self.begin, START

    def run(self, seconds: int, every_s: int = 7) -> None:
        """Look every few seconds."""
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            if self.now - self.wanted_since >= timedelta(seconds=self.late_s):
                self.there = self.scale.replicas
            seen = MeasuredDataWorkers(self.load(self.there, self.now), self.there == self.scale.replicas, 2)
            new = next_data_workers_scale(self.bounds, self.scale, seen, self.now)
            if new.replicas != self.scale.replicas:
                self.changes.append(new.replicas)
                self.wanted_since = self.now
            self.scale = new
            self.now += timedelta(seconds=every_s)


def loader(needed: float) -> Load:
    """Ranks wait as long as their step takes longer than its computation; `needed` data workers just keep up."""
    return lambda replicas, now: max(0.0, 1 - replicas / needed)


BOUNDS = st.tuples(st.integers(1, 40), st.integers(0, 40)).map(lambda b: (b[0], b[0] + b[1]))


@pytest.mark.slow
@settings(max_examples=100)
@given(BOUNDS, st.floats(0.1, 100), st.floats(0.01, 0.5), st.integers(0, 90), st.data())
def test_it_settles_on_the_fewest_that_keep_ranks_from_waiting(
    bounds: tuple[int, int], needed: float, target: float, late_s: int, data: st.DataObject
) -> None:
    """And then never changes; on the most that there may be if all are too few."""
    low, high = bounds
    spec = Autoscale(min_replicas=low, max_replicas=high, target_wait_fraction=target)
    load = loader(needed)
    played = Played(spec, load, data.draw(st.integers(low, high)), late_s)
    played.run(60 * 60 * 12, every_s=61)
    settled, found = len(played.changes), played.scale.replicas
    played.run(60 * 60 * 3, every_s=61)
    assert played.changes[settled:] == []
    assert found == high or load(found, START) <= target
    one_less = load(found - 1, START) if found > low else None
    assert one_less is None or load(found, START) >= target / 2 or one_less > target


@settings(max_examples=40)
@given(BOUNDS, st.floats(0.5, 60), st.integers(), st.floats(0, 0.4))
def test_noise_and_changing_loads_never_make_it_go_to_and_fro(
    bounds: tuple[int, int], needed: float, seed: int, noise: float
) -> None:
    """There are only so many changes, whatever is measured: each way up begins above the one before."""
    low, high = bounds
    rng = random.Random(seed)
    clean = loader(needed)

    def load(replicas: int, now: datetime) -> float:
        phase = 1 if now.hour % 2 else 0.3  # of epochs of which some need less
        return min(1.0, max(0.0, clean(replicas, now) * phase + rng.gauss(0, noise)))

    played = Played(Autoscale(min_replicas=low, max_replicas=high), load, low)
    played.run(60 * 60 * 24, every_s=61)
    ups = [before for before, after in zip([low, *played.changes], played.changes, strict=False) if after > before]
    assert ups == sorted(set(ups))
    assert all(low <= replicas <= high for replicas in played.changes)


def test_more_come_in_one_step_where_the_wait_says_how_many() -> None:
    """A rank that waits 60 % of its time needs two and a half times as many; never more than twice at once."""
    played = Played(Autoscale(max_replicas=16), loader(10), 4)
    played.run(MORE_AFTER_S + 7)
    assert played.changes == [8]
    played.run(MORE_AFTER_S + 7)
    assert played.changes == [8, 10]


def test_a_short_wait_changes_nothing() -> None:
    """A checkpoint, or the first steps of an epoch."""
    played = Played(Autoscale(max_replicas=16), lambda replicas, now: 0.5 if now.minute % 2 else 0.03, 4)
    played.run(60 * 60)
    assert played.changes == []


@pytest.mark.parametrize("waited", [0.25, 0.2, 0.125])
def test_a_wait_between_half_the_target_and_the_target_changes_nothing(waited: float) -> None:
    """Both bounds included. A tendency to more or fewer data workers ends."""
    bounds = Autoscale(max_replicas=16, target_wait_fraction=0.25)
    scale = DataScale(replicas=4, asked=4, workers=2)
    seen = MeasuredDataWorkers(waited, True, 2)
    for tendency in ("above_since", "below_since"):
        earlier = scale.model_copy(update={tendency: START})
        assert next_data_workers_scale(bounds, earlier, seen, START + timedelta(hours=1)) == scale


def test_what_is_not_measured_changes_nothing() -> None:
    """Between attempts, or while the launcher is away, nothing is learned, and a tendency ends."""
    bounds, now = Autoscale(max_replicas=16), START
    scale = DataScale(replicas=4, asked=4, workers=2, above_since=START)
    unknown = MeasuredDataWorkers(None, True, 2)
    assert next_data_workers_scale(bounds, scale, unknown, now + timedelta(hours=1)).model_dump(exclude_none=True) == {
        "replicas": 4,
        "asked": 4,
        "workers": 2,
        "too_few": 0,
    }


def test_another_world_is_learned_anew() -> None:
    """An elastic job that shrank may need fewer than were once too few."""
    scale = DataScale(replicas=4, asked=2, workers=4, too_few=3, below_since=START)
    played = Played(Autoscale(max_replicas=16), loader(1), 4)
    played.scale = scale
    played.run(2 * FEWER_AFTER_S + 60)
    assert played.scale.replicas < 4


def test_new_bounds_are_followed_at_once() -> None:
    """A maximum below the present number is no matter of measuring."""
    scale = DataScale(replicas=9, asked=9, workers=2, above_since=START)
    assert (
        next_data_workers_scale(Autoscale(max_replicas=5), scale, MeasuredDataWorkers(0.9, True, 2), START).replicas
        == 5
    )
    low = DataScale(replicas=1, asked=1, workers=2)
    assert (
        next_data_workers_scale(
            Autoscale(min_replicas=3, max_replicas=5), low, MeasuredDataWorkers(None, True, 2), START
        ).replicas
        == 3
    )


def test_it_says_when_to_look_again() -> None:
    """And not while no change is possible."""
    bounds = Autoscale(max_replicas=4)
    above = DataScale(replicas=2, asked=2, workers=2, above_since=START)
    assert next_scale_time(bounds, above) == START + timedelta(seconds=MORE_AFTER_S)
    assert next_scale_time(bounds, above.model_copy(update={"replicas": 4})) is None
    below = DataScale(replicas=2, asked=2, workers=2, below_since=START)
    assert next_scale_time(bounds, below) == START + timedelta(seconds=FEWER_AFTER_S)
    assert next_scale_time(bounds, below.model_copy(update={"too_few": 1})) is None
