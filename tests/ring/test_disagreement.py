"""Ranks that go apart after all was made alike: each is told on all ranks, with what differs, within bounds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ringtrain import elastic
from ringtrain._core.process_groups.context import current
from ringtrain.data import shard
from ringtrain.errors import MismatchError, RingtrainError, StateCorrupt
from ringtrain.optim import SGD, AdamW, HostOptimizer
from ringtrain.optim.memory_check import EVERY, PARTS

from .worlds import all_raise, world_of

ODD = 1
MOST_UPDATES = PARTS + EVERY + 1
Spoil = Callable[[HostOptimizer, int], None]


def _other_state(opt: HostOptimizer, rank: int) -> None:
    """The odd rank loads what it saved before, and another one of its model."""
    state = opt.state_dict()
    if rank == ODD:
        state["arrays"]["weights"]["a"][5] += 1.0
    opt.load_state_dict(state)


def _another_bit(opt: HostOptimizer, rank: int) -> None:
    if rank == ODD:
        opt.weights["a"].view(np.uint32)[77] ^= 1 << 20


def _nothing(opt: HostOptimizer, rank: int) -> None: ...


def _trains(spoil: Spoil, rank: int, **options: Any) -> int:
    """Updates that were made until the error."""
    opt = HostOptimizer({"a": np.zeros(3000, np.float32), "b": np.ones(7, np.float32)}, **options)
    for update in range(3 + MOST_UPDATES):
        if update == 3:
            spoil(opt, rank)
        for name, weights in opt.weights.items():
            opt.submit(name, np.full(weights.shape, 0.5, np.float32))
        opt.step()
    return opt.updates


@pytest.mark.parametrize("transport", ["memory", "shm"])
@pytest.mark.parametrize(
    ("spoil", "sharded"),
    # With shards what a rank writes to others' elements is overwritten by the next update.
    [(_other_state, True), (_other_state, False), (_another_bit, False)],
    ids=["other-state-sharded", "other-state", "another-bit"],
)
def test_a_rank_whose_weights_are_others_is_named(spoil: Spoil, sharded: bool, transport: str) -> None:
    """Of three ranks the one, though its own optimizer is as content as the others'."""
    with world_of(3, transport) as world:
        errors = world.errors(lambda rank: _trains(spoil, rank, rule=SGD(0.01), sharded=sharded, bucket_bytes=4000))
        all_raise(errors, StateCorrupt, f"the weights on ranks [{ODD}] differed from those of the others", ranks=(ODD,))


def test_a_rank_whose_weights_are_others_is_named_at_a_save() -> None:
    """One flipped bit: no save has weights that are one rank's alone, however soon it comes."""

    def saves(rank: int) -> None:
        opt = _optimizer()
        _updates(opt)
        opt.drain()
        opt.state_dict(root=0)
        if rank == ODD:
            opt.weights["a"].view(np.uint32)[29] ^= 1
        opt.state_dict(root=0)

    with world_of(3) as world:
        all_raise(world.errors(saves), StateCorrupt, "after update 1 the weights on ranks [1]", ranks=(ODD,))


class _OfALibrary(SGD):
    """A rule as torch's optimizers are: called for one parameter at a time."""

    by_parameter = True


def test_a_librarys_rule_on_every_rank_may_differ_in_a_bit() -> None:
    """Processors that are not alike round differently there; with shards one rank's bits are everybody's."""
    with world_of(2, "memory") as world:
        whole = world.run(lambda rank: _trains(_another_bit, rank, rule=_OfALibrary(0.01), sharded=False))
    assert whole == [3 + MOST_UPDATES] * 2


@pytest.mark.parametrize("elastically", [True, False], ids=["elastic", "plain"])
@pytest.mark.parametrize("sharded", [True, False], ids=["sharded", "whole"])
def test_a_rate_that_is_a_ranks_own_is_named(sharded: bool, elastically: bool) -> None:
    """With shards the weights stay alike, and are those of no optimizer: a part of them learns at another rate."""

    def trains(rank: int) -> int:
        rate = 0.1 if rank == ODD else 1.0
        return _trains(
            _nothing, rank, rule=AdamW(0.1), schedule=lambda update: rate, sharded=sharded, elastic=elastically
        )

    with world_of(3) as world:
        errors = world.errors(trains)
        all_raise(errors, MismatchError, "learning rates [0.1] on rank 0 and [0.010000000000000002] on rank 1")


def test_ranks_that_agree_hear_nothing() -> None:
    """Through more updates than a round of comparisons has."""
    with world_of(2) as world:
        made = world.run(lambda rank: _trains(_other_state if rank == 9 else _nothing, rank, rule=SGD(0.1)))
    assert made == [3 + MOST_UPDATES] * 2


DRAWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "seed": ({"seed": 1}, {}),
    "length": ({"samples": 41}, {}),
    "batch-size": ({"batch_size": 3}, {}),
    "shuffle": ({"shuffle": False}, {}),
    "last": ({"last": "dropped"}, {}),
    "epoch": ({}, {"epoch": 1}),
    "position": ({}, {"consumed": 8}),
    "start": ({}, {"start": 1}),
}


@pytest.mark.parametrize(("cut", "drawn"), DRAWS.values(), ids=DRAWS)
def test_parts_of_other_data_sets(cut: dict[str, Any], drawn: dict[str, Any]) -> None:
    """One rank of three trains on a part of another cut: all ranks raise with both, after a few updates."""

    def trains(rank: int) -> None:
        odd = rank == ODD
        part = shard(**({"samples": 40, "batch_size": 2} | (cut if odd else {})))
        opt = _optimizer()
        for _ in part.epoch(**({"epoch": 0} | (drawn if odd else {}))):
            _updates(opt)

    with world_of(3) as world:
        errors = world.errors(trains)
    assert len({str(error) for error in errors}) == 1
    for error in errors:
        assert isinstance(error, MismatchError)
        assert f"rank {ODD} trains on shard(" in str(error)
        assert "rank 0 trains on shard(40, batch_size=2, seed=0, shuffle=True, last=" in str(error)


def test_a_rank_that_begins_another_epoch_later_is_named() -> None:
    """The first epochs are alike, and the ranks are told within a round of comparisons after the odd one."""

    def trains(rank: int) -> None:
        part, opt = shard(40, batch_size=2), _optimizer()
        for epoch in (0, 1, 2, 3 + (rank == ODD), 7, 8, 9):
            for _ in part.epoch(epoch):
                _updates(opt)

    with world_of(2) as world:
        all_raise(world.errors(trains), MismatchError, "epoch 3 from sample 0 on, but rank 1 trains on")


def test_who_reads_ahead_or_evaluates_alone_disagrees_with_nobody() -> None:
    """One rank begins each epoch before the others end theirs, and rank 0 alone looks at other data."""

    def trains(rank: int) -> int:
        part, opt = shard(12, batch_size=2), _optimizer()
        ahead = [next(part.epoch(epoch)) for epoch in range(2)] if rank == ODD else []
        for epoch in range(12):
            if rank == ODD:
                ahead.append(next(part.epoch(epoch + 2)))
            if rank == 0:
                assert list(shard(9, batch_size=1, shuffle=False).epoch(0))
            for _ in range(2) if rank == ODD else part.epoch(epoch):
                _updates(opt)
        return opt.updates

    with world_of(3) as world:
        assert world.run(trains) == [24] * 3


def _optimizer() -> HostOptimizer:
    return HostOptimizer({"a": np.zeros(30, np.float32)}, SGD(0.1))


def _updates(opt: HostOptimizer) -> None:
    opt.submit("a", np.full(30, 0.5, np.float32))
    opt.step()


SHARDS = {
    "batch": (lambda odd: elastic.shard(20, elastic.FixedGlobal(5 + odd)), "FixedGlobal(5)", "FixedGlobal(6)"),
    "micro-batch": (lambda odd: elastic.shard(20, elastic.FixedGlobal(4, 1 + odd)), "(4, 1)", "(4, 2)"),
    "kind": (
        lambda odd: elastic.shard(20, (elastic.PerRank if odd else elastic.FixedGlobal)(4)),
        "Fixed",
        "PerRank",
    ),
    "seed": (lambda odd: elastic.shard(20, elastic.FixedGlobal(5), seed=odd), "seed=0", "seed=1"),
    "length": (lambda odd: elastic.shard(20 + odd, elastic.FixedGlobal(5)), "shard(20", "shard(21"),
    "shuffle": (lambda odd: elastic.shard(20, elastic.FixedGlobal(5), shuffle=not odd), "=True", "=False"),
    "last": (
        lambda odd: elastic.shard(20, elastic.FixedGlobal(5), last="dropped" if odd else "weighted"),
        "'weighted'",
        "'dropped'",
    ),
}


@pytest.mark.parametrize(("make", "here", "there"), SHARDS.values(), ids=SHARDS)
def test_shards_that_are_cut_differently(make: Callable[[int], Any], here: str, there: str) -> None:
    """Samples would count twice or never: all ranks raise, with both values."""

    def enters(rank: int) -> None:
        assert current().config.place.rank == rank
        elastic.State(shard=make(int(rank == ODD)), step=0).sync()

    with world_of(2) as world:
        all_raise(world.errors(enters), RingtrainError, here, there)
