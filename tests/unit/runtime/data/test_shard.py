"""Every sample once an epoch, whatever the world size; the last batch as the user chose."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtrain.data import Shard, shard
from ringtrain.errors import ConfigurationError, DataError

worlds = st.tuples(st.integers(1, 200), st.integers(1, 17), st.integers(1, 9), st.integers(0, 3), st.booleans())


def _ranks(samples: int, batch: int, size: int, seed: int, shuffle: bool, last: str) -> list[Shard]:
    return [Shard(samples, batch, rank, size, seed, shuffle, last) for rank in range(size)]  # type: ignore[arg-type]


@settings(max_examples=200)
@given(worlds, st.sampled_from(["weighted", "padded"]), st.integers(0, 5))
def test_every_sample_is_seen_once(world: tuple[int, int, int, int, bool], last: str, epoch: int) -> None:
    """Over all ranks and steps, the unmasked indices are each sample exactly once."""
    ranks = _ranks(*world, last)
    batches = [list(rank.epoch(epoch)) for rank in ranks]
    seen = np.concatenate([batch.indices[batch.mask] for row in batches for batch in row])
    assert sorted(seen) == list(range(world[0]))
    assert {len(row) for row in batches} == {ranks[0].steps}
    assert all(batch.indices.size > 0 for row in batches for batch in row)


@settings(max_examples=100)
@given(worlds)
def test_dropping_loses_only_the_rest(world: tuple[int, int, int, int, bool]) -> None:
    """Only whole global batches remain, and no sample is in two of them."""
    samples, batch, size = world[:3]
    seen = [index for rank in _ranks(*world, "dropped") for part in rank.epoch(0) for index in part.indices]
    assert len(seen) == len(set(seen)) == samples // (batch * size) * batch * size


@settings(max_examples=100)
@given(worlds, st.integers(0, 3))
def test_weights_make_the_mean_over_ranks_the_mean_over_samples(
    world: tuple[int, int, int, int, bool], epoch: int
) -> None:
    """At each step, the mean over ranks of weight x local mean is the mean of the pooled batch."""
    samples, batch, size, seed, shuffle = world
    value = np.random.default_rng(0).normal(size=samples)
    (pooled,) = _ranks(samples, batch * size, 1, seed, shuffle, "weighted")
    steps = zip(*(rank.epoch(epoch) for rank in _ranks(*world, "weighted")), strict=True)
    for whole, parts in zip(pooled.epoch(epoch), steps, strict=True):
        mean = sum(part.weight * value[part.indices].mean() for part in parts) / size
        assert mean == pytest.approx(value[whole.indices].mean(), rel=1e-12, abs=1e-12)


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    """The same (seed, epoch) gives the same order at any world size; another seed or epoch gives another."""
    one, four = Shard(50, 8, 0, 1, 3, True, "weighted"), Shard(50, 2, 1, 4, 3, True, "weighted")
    assert one.order(2).tolist() == four.order(2).tolist()
    assert one.order(2).tolist() != one.order(3).tolist()
    assert one.order(2).tolist() != Shard(50, 8, 0, 1, 4, True, "weighted").order(2).tolist()


def test_the_order_is_the_same_tomorrow() -> None:
    """A pinned order: a change of it would change every training run that is resumed."""
    assert Shard(10, 2, 0, 1, 0, True, "weighted").order(0).tolist() == [0, 8, 9, 3, 7, 5, 1, 2, 6, 4]


def test_without_shuffle_the_order_is_that_of_the_data() -> None:
    """Unshuffled, rank r takes the r-th part of each global batch."""
    batches = list(Shard(8, 2, 1, 2, 0, False, "weighted").epoch(7))
    assert [batch.indices.tolist() for batch in batches] == [[2, 3], [6, 7]]


def test_an_epoch_can_be_entered_in_the_middle() -> None:
    """A resumed job gets the batches that it has not seen."""
    made = Shard(20, 3, 0, 2, 0, True, "weighted")
    all_batches, rest = list(made.epoch(1)), list(made.epoch(1, start=2))
    assert [b.indices.tolist() for b in rest] == [b.indices.tolist() for b in all_batches[2:]]


lives = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 17), st.integers(0, 8)), min_size=1, max_size=6)


@settings(max_examples=300)
@given(st.integers(1, 200), st.sampled_from(["weighted", "padded"]), st.integers(0, 2), lives)
def test_an_epoch_goes_on_at_any_world_size(
    samples: int, last: str, epoch: int, lives: list[tuple[int, int, int]]
) -> None:
    """Worlds of (size, batch, steps) take over from each other: each sample is in exactly one committed step.

    What a world did after its last committed step is lost with it, and the next one does it again.
    """
    ledger: list[int] = []
    consumed = 0
    for size, batch, steps in [*lives, (2, 5, samples)]:
        rows = [list(rank.epoch(epoch, consumed=consumed)) for rank in _ranks(samples, batch, size, 0, True, last)]
        for parts in list(zip(*rows, strict=True))[:steps]:
            ledger += [index for part in parts for index in part.indices[part.mask]]
            (consumed,) = {part.consumed for part in parts}
            assert len(ledger) == consumed
    assert sorted(ledger) == list(range(samples))


@pytest.mark.parametrize("consumed", [-1, 21])
def test_no_more_samples_than_there_are(consumed: int) -> None:
    """A position of another data set is refused, not cut."""
    with pytest.raises(ConfigurationError, match=f"consumed is {consumed}; expected 0 to 20"):
        next(Shard(20, 3, 0, 2, 0, True, "padded").epoch(0, consumed=consumed))


def test_numbers_may_be_numpys() -> None:
    """As a sum over a mask is."""
    made = shard(np.int64(20), np.int32(3), rank=0, size=2)
    assert (made.samples, made.steps, type(made.samples)) == (20, 4, int)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1), (0, 5)], ids=["epoch", "before", "behind"])
def test_no_epoch_and_no_step_that_is_not_there(epoch: int, start: int, shuffle: bool) -> None:
    """An empty batch that says that all of the epoch is consumed is none."""
    made = Shard(20, 3, 0, 2, 0, shuffle, "padded")
    assert list(made.epoch(0, made.steps)) == []
    with pytest.raises(ConfigurationError, match=f"epoch is {epoch} and start is {start}; expected .* 0 to 4"):
        next(made.epoch(epoch, start))


def test_a_shard_says_what_one_step_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Global batch, steps and the rest, to whoever asks; a library prints nothing by itself."""
    made = shard(range(1437), 32, rank=0, size=4)
    assert made.describe() == (
        "global batch: 128 = 32 per rank x 4 ranks; 1437 samples, 12 steps an epoch, the last of 29 samples padded"
    )
    assert capsys.readouterr().out == ""


@settings(max_examples=100)
@given(worlds)
def test_by_default_a_loop_needs_no_weight(world: tuple[int, int, int, int, bool]) -> None:
    """Every batch has the same size and the weight 1: the mean over ranks is that over the step's samples."""
    samples, batch, size, seed, shuffle = world
    for rank in range(size):
        made = shard(samples, batch, seed=seed, shuffle=shuffle, rank=rank, size=size)
        assert {(part.indices.size, part.weight) for part in made.epoch(0)} == {(batch, 1.0)}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_size": 0}, ConfigurationError, "batch_size is 0; expected at least 1 sample per rank"),
        ({"batch_size": 48 / 2}, ConfigurationError, "batch_size is 24.0, a float; expected a whole number"),
        ({"samples": 1e3}, ConfigurationError, "samples is 1000.0, a float; expected a whole number"),
        ({"samples": -5}, DataError, "-5 samples can't fill a step"),
        ({"seed": -1}, ConfigurationError, "seed is -1; expected 0 or more"),
        ({"last": "keep"}, ConfigurationError, 'last is "keep"; expected one of weighted, padded, dropped'),
        (
            {"rank": 4},
            ConfigurationError,
            "rank is 4 and size is 4; expected 0 <= rank < size, or neither of them",
        ),
        ({"rank": None}, ConfigurationError, "rank is None and size is 4; expected 0"),
        ({"samples": 0}, DataError, "0 samples can't fill a step"),
        (
            {"last": "dropped", "samples": 127},
            DataError,
            "127 samples can't fill a step: the global batch is 128 (32 on each of 4 ranks), and",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    """The error names the argument, its value and what was expected."""
    defaults: dict[str, object] = {"samples": 1000, "batch_size": 32, "rank": 0, "size": 4}
    with pytest.raises(error) as caught:
        shard(**(defaults | arguments))  # type: ignore[arg-type]
    assert message in str(caught.value)
