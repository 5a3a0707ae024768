"""The data's position over worlds of changing size."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.memory_group import MemoryGroup, run_threads

from ringtrain import elastic
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.world.config import WorkerConfig
from ringtrain.errors import ConfigurationError, DataError
from ringtrain.optim import SGD, HostOptimizer
from ringtrain.shared.place import RankPlace


class _World(ProcessGroupContext):
    """A place in a world, of which only its numbers are used."""

    def __init__(self, rank: int, size: int) -> None:
        self.config = WorkerConfig(place=RankPlace(rank, size))
        self._lock, self._attached = threading.Lock(), {}


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
                for part in one.micro_batches:
                    used += part.indices[part.mask].tolist()
            assert state is None or state["consumed"] == shard.consumed
            state = shard.state_dict()
    return used, state


SAMPLES = 103


@settings(max_examples=60)
@given(
    worlds=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=6),
    batch=st.sampled_from(
        [elastic.FixedGlobal(8), elastic.FixedGlobal(5), elastic.FixedGlobal(9, micro_batch=2), elastic.PerRank(3)]
    ),
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


def _train(group: MemoryGroup, batch: elastic.FixedGlobal) -> tuple[list[int], list[float]]:
    """One epoch whose every sample pulls at the weights in its own way: the samples used here, and the weights."""
    used: list[int] = []
    with place(group.rank, group.size):
        shard = elastic.shard(SAMPLES, batch, seed=2)
        optimizer = HostOptimizer({"w": np.ones(7)}, SGD(0.1, momentum=0.9), group=group)
        optimizer.set_backward_passes_per_step(shard.passes)
        for step in shard:
            for part in step.micro_batches:
                assert part.indices.size <= (batch.micro_batch or SAMPLES)
                pull = np.sin(part.indices[:, None] + np.arange(7.0)) * optimizer.weights["w"]
                optimizer.submit("w", pull.mean(0), part.weight)
                is_updated = optimizer.step()
                used += part.indices[part.mask].tolist()
            assert is_updated
        return used, optimizer.weights["w"].tolist()


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("micro_batch", [1, 3, 100])
def test_a_small_world_takes_a_step_in_several_micro_batches(size: int, micro_batch: int) -> None:
    """No rank holds more samples at once than it has memory for, and every sample counts once. The weights are
    those of one rank that takes each global batch at once, but for the order in which floats are added."""
    ((_, expected),) = run_threads(lambda group: _train(group, elastic.FixedGlobal(20)), 1)
    ranks = run_threads(lambda group: _train(group, elastic.FixedGlobal(20, micro_batch)), size)
    assert sorted(index for used, _ in ranks for index in used) == list(range(SAMPLES))
    for _, weights in ranks:
        assert weights == pytest.approx(expected, rel=1e-12)


def test_equal_micro_batches_have_weight_one() -> None:
    """So that a loop that needs no weight elsewhere gets the same gradients to the bit."""
    with place(0, 2):
        shard = elastic.shard(64, elastic.FixedGlobal(16, micro_batch=3))
        assert shard.passes == 3
        (first, *_) = elastic.shard(64, elastic.FixedGlobal(32, micro_batch=4))
        assert [(part.count, part.weight) for part in first.micro_batches] == [(4, 1.0)] * 4


def test_what_is_read_ahead_and_not_used_is_given_back() -> None:
    """A loop that reads ahead says what it has used; the rest comes again."""
    with place(0, 1):
        shard = elastic.shard(20, elastic.FixedGlobal(4), shuffle=False)
        ahead = list(shard.batches())
        shard.used(ahead[0])
        shard.used(ahead[1])
        shard.load_state_dict(shard.state_dict())
        assert [batch.indices[0] for batch in shard] == [8, 12, 16]
        with pytest.raises(ConfigurationError, match="at sample 4 of the epoch, which is used up to sample 20 already"):
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
        (lambda: elastic.shard(10, elastic.FixedGlobal(0)), ConfigurationError, "batch=FixedGlobal"),
        (
            lambda: elastic.shard(10, elastic.FixedGlobal(4, 0)),
            ConfigurationError,
            "micro_batch must be at least 1",
        ),
        (lambda: elastic.shard(10, 4), ConfigurationError, "batch=4; expected FixedGlobal"),
        (lambda: elastic.shard(10, elastic.FixedGlobal(2), last="padded"), ConfigurationError, 'last is "padded"'),
        (lambda: elastic.shard(0, elastic.FixedGlobal(2)), DataError, "0 samples can't fill a step of 2"),
    ],
    ids=["no-samples-a-step", "no-samples-at-once", "a-number", "padded", "no-data"],
)
def test_wrong_arguments(make: Any, error: type[Exception], message: str) -> None:
    """Named with their value and what was expected."""
    with pytest.raises(error, match=message):
        make()


def test_another_data_set_is_refused() -> None:
    """A position in other data, or in another order of them, means other samples."""
    with place(0, 1):
        one, other = elastic.shard(20, elastic.FixedGlobal(4)), elastic.shard(21, elastic.FixedGlobal(4))
        with pytest.raises(ConfigurationError, match="samples is 21 on this rank, but 20 in the loaded state"):
            other.load_state_dict(one.state_dict())
