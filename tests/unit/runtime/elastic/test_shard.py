"""The data's position over worlds of changing size."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtrain import elastic
from ringtrain.errors import ConfigurationError, DataError
from ringtrain.process_groups.rank_context import RankContext
from ringtrain.world.config import WorkerConfig


class _World(RankContext):
    """A place in a world, of which only its numbers are used."""

    def __init__(self, rank: int, size: int) -> None:
        self.config = WorkerConfig(rank=rank, size=size)


@contextlib.contextmanager
def place(rank: int, size: int) -> Iterator[None]:
    with _World(rank, size).entered():
        yield


def steps_of(
    position: dict[str, Any] | None, size: int, steps: int, batch: Any, **options: Any
) -> tuple[list[int], Any]:
    """The samples that all ranks of a world use in so many steps from a position, and the position after them."""
    used: list[int] = []
    state: Any = None
    for rank in range(size):
        with place(rank, size):
            shard = elastic.shard(SAMPLES, batch, seed=5)
            if position is not None:
                shard.load_state_dict(position)
            for _, one in zip(range(steps), shard, strict=False):
                used += one.indices[one.mask].tolist()
            assert state is None or state["consumed"] == shard.consumed
            state = shard.state_dict()
    return used, state


SAMPLES = 103


@settings(deadline=None, max_examples=60)
@given(
    worlds=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=6),
    batch=st.sampled_from([elastic.FixedGlobal(8), elastic.FixedGlobal(5), elastic.PerRank(3)]),
)
def test_every_sample_once_an_epoch(worlds: list[tuple[int, int, int]], batch: Any) -> None:
    """Over any worlds, of which each loses steps that it has begun and not committed."""
    ledger: list[int] = []
    position = None
    for size, committed, lost in worlds:
        steps_of(position, size, committed + lost, batch)  # what is lost is given back
        used, position = steps_of(position, size, committed, batch)
        ledger += used
    used, position = steps_of(position, 3, 1000, batch)
    assert sorted([*ledger, *used]) == list(range(SAMPLES))
    assert position["consumed"] == SAMPLES


def test_a_fixed_global_batch_is_the_same_step_in_any_world() -> None:
    """The samples of a step do not depend on the number of ranks, and weights sum up to the number of ranks."""
    steps = {size: sorted(steps_of(None, size, 3, elastic.FixedGlobal(10))[0]) for size in (1, 2, 3, 7, 16)}
    assert len({tuple(samples) for samples in steps.values()}) == 1
    weights = []
    for rank in range(7):
        with place(rank, 7):
            weights.append(next(iter(elastic.shard(SAMPLES, elastic.FixedGlobal(10)))).weight)
    assert sum(weights) == pytest.approx(7)


def test_what_is_read_ahead_and_not_used_is_given_back() -> None:
    """A loop that reads ahead says what it has used; the rest comes again."""
    with place(0, 1):
        shard = elastic.shard(20, elastic.FixedGlobal(4), shuffle=False)
        ahead = list(shard.batches())
        shard.used(ahead[0])
        shard.used(ahead[1])
        shard.load_state_dict(shard.state_dict())
        assert [batch.indices[0] for batch in shard] == [8, 12, 16]
        with pytest.raises(ConfigurationError, match="ends at sample 4 of the epoch, and 20 are used already"):
            shard.used(ahead[0])


def test_an_iterator_of_an_earlier_position_ends() -> None:
    """It would go on with samples of a position that was given up."""
    with place(0, 1):
        shard = elastic.shard(20, elastic.FixedGlobal(4), shuffle=False)
        batches = shard.batches()
        next(batches)
        shard.load_state_dict(shard.state_dict())
        assert list(batches) == []


def test_epochs_go_on_where_they_were() -> None:
    """The epoch is part of the position: a rank that enters again does not begin with the first one."""
    with place(0, 1):
        shard = elastic.shard(6, elastic.FixedGlobal(2))
        seen = [(epoch, len(list(shard))) for epoch in shard.epochs(2)]
        assert seen == [(0, 3), (1, 3)]
        shard.load_state_dict({**shard.state_dict(), "epoch": 3, "consumed": 4})
        assert [(epoch, len(list(shard))) for epoch in shard.epochs(5)] == [(3, 1), (4, 3)]


def test_the_rate_is_scaled_with_the_world() -> None:
    """By the factor to the first world's global batch, whichever world comes next."""
    factors: list[float] = []
    position: Any = None
    for size in (4, 2, 8):
        with place(0, size):
            shard = elastic.shard(100, elastic.PerRank(5, factors.append))
            shard.load_state_dict(position or shard.state_dict())
            position = shard.state_dict()
    assert factors == [1.0, 0.5, 2.0]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: elastic.shard(10, elastic.FixedGlobal(0)), ConfigurationError, "batch is FixedGlobal"),
        (lambda: elastic.shard(10, 4), ConfigurationError, "batch is 4; expected FixedGlobal"),
        (lambda: elastic.shard(10, elastic.FixedGlobal(2), last="padded"), ConfigurationError, 'last is "padded"'),
        (lambda: elastic.shard(0, elastic.FixedGlobal(2)), DataError, "0 samples give no step of 2"),
    ],
    ids=["no-samples-a-step", "a-number", "padded", "no-data"],
)
def test_wrong_arguments(make: Any, error: type[Exception], message: str) -> None:
    """Named with their value and what was expected."""
    with pytest.raises(error, match=message):
        make()


def test_another_data_set_is_refused() -> None:
    """A position in other data, or in another order of them, means other samples."""
    with place(0, 1):
        one, other = elastic.shard(20, elastic.FixedGlobal(4)), elastic.shard(21, elastic.FixedGlobal(4))
        with pytest.raises(ConfigurationError, match="samples is 21 here and 20 in the state"):
            other.load_state_dict(one.state_dict())
