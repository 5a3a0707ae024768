"""An optimizer whose world changes has the bits of a training that was not disturbed, and finds memory that changed."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.memory_group import MemoryGroup, run_threads

from ringtrain.errors import ConfigurationError, MismatchError, StateCorrupt, StateLost
from ringtrain.optim import LAMB, SGD, AdamW, HostOptimizer, Rule
from ringtrain.optim.cut import UnjoinedOptimizerGroup
from ringtrain.optim.memory_check import EVERY, PARTS
from ringtrain.optim.wire import LOST

SHAPES = {"a": (40, 33), "b": (1001,), "c": (0, 3), "d": (9,)}
DONE, LAST = 3, 5
Bits = dict[str, bytes]


def _optimizer(group: Any, rule: Rule, **options: Any) -> HostOptimizer:
    random = np.random.default_rng(7)
    params = {name: (random.integers(-8, 9, shape) / 8).astype(np.float32) for name, shape in SHAPES.items()}
    params["half"] = np.linspace(0, 1, 300).astype(ml_dtypes.bfloat16)
    return HostOptimizer(params, rule, bucket_bytes=2000, group=group, **{"elastic": True, **options})


def _train(opt: HostOptimizer, to: int) -> None:
    """The same exact gradients on every rank, so that the size of the world does not matter. "d" misses one update."""
    while opt.updates < to:
        for name, weights in reversed(opt.weights.items()):
            random = np.random.default_rng([opt.updates, weights.size])
            gradient = (random.integers(-8, 9, weights.shape) / 8).astype(weights.dtype)
            opt.submit(name, None if (name, opt.updates) == ("d", 1) else gradient)
        opt.step()


def _bits(opt: HostOptimizer) -> Bits:
    arrays = opt.state_dict()["arrays"]
    return {f"{slot} {name}": values.tobytes() for slot, of in arrays.items() for name, values in of.items()}


def _trained(group: MemoryGroup, rule: Rule, options: dict[str, Any]) -> HostOptimizer:
    opt = _optimizer(group, rule, **options)
    _train(opt, DONE)
    return opt


def _undisturbed(group: MemoryGroup, rule: Rule) -> list[Bits]:
    opt, bits = _optimizer(group, rule, elastic=False), []
    for updates in (DONE - 1, DONE, LAST):
        _train(opt, updates)
        bits.append(_bits(opt))
    return bits


def _go_on(group: MemoryGroup, opts: Sequence[HostOptimizer], former: Sequence[int | None], rule: Rule) -> list[Bits]:
    """Return the bits after the reform, and at the end."""
    before = former[group.rank]
    opt = _optimizer(UnjoinedOptimizerGroup(), rule) if before is None else opts[before]
    opt.reform(group, former)
    bits = [_bits(opt)]
    _train(opt, LAST)
    return [*bits, _bits(opt)]


RULES = [SGD(0.1, momentum=0.9), AdamW(0.1), LAMB(0.1)]


@pytest.mark.parametrize("back", [0, 1], ids=["rolls-back-none", "rolls-back-one"])
@pytest.mark.parametrize("former", [[0, 1, 2], [2, 0, 1], [0, None, 2], [2, 1], [None, 0, 1, 2]], ids=str)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_world_that_changes_has_the_bits_of_one_that_does_not(
    rule: Rule, former: list[int | None], back: int
) -> None:
    """Ranks may be permuted, lost, replaced and added, after the last update or after one that is undone."""
    (expected,) = run_threads(_undisturbed, 1, rule)
    opts = run_threads(_trained, 3, rule, {})
    for opt in opts:
        assert opt.rollback(DONE - back) == opt.updates == DONE - back
    assert run_threads(_go_on, len(former), opts, former, rule) == [[expected[1 - back], expected[2]]] * len(former)


@pytest.mark.parametrize(
    ("options", "former"),
    [({"redundancy": 2}, [None, 1, None]), ({"sharded": False}, [1]), ({"accumulate": 1}, [None, None, 1, 0, 2])],
    ids=["two-replicas", "unsharded", "grows"],
)
def test_replicas_replace_what_is_lost(options: dict[str, Any], former: list[int | None]) -> None:
    """Two of three ranks with two replicas of each shard, and with whole states."""
    (expected,) = run_threads(_undisturbed, 1, AdamW(0.1))
    opts = run_threads(_trained, 3, AdamW(0.1), options)

    def go_on(group: MemoryGroup) -> list[Bits]:
        before = former[group.rank]
        opt = _optimizer(UnjoinedOptimizerGroup(), AdamW(0.1), **options) if before is None else opts[before]
        opt.reform(group, former)
        bits = [_bits(opt)]
        _train(opt, LAST)
        return [*bits, _bits(opt)]

    assert run_threads(go_on, len(former)) == [expected[1:]] * len(former)


@pytest.mark.parametrize("leaving", [[0], [1, 2], [0, 2, 3]], ids=str)
def test_ranks_that_leave_by_plan_hand_over_their_shards(leaving: list[int]) -> None:
    """Also where a rank and the replica of its shard leave together."""
    (expected,) = run_threads(_undisturbed, 1, AdamW(0.1))
    opts = run_threads(_trained, 4, AdamW(0.1), {})
    run_threads(lambda group: opts[group.rank].hand_over(leaving), 4)
    former = [rank for rank in range(4) if rank not in leaving]
    assert run_threads(_go_on, len(former), opts, former, AdamW(0.1)) == [expected[1:]] * len(former)


@pytest.mark.parametrize("compression", ["int8", "bf16", "fp16"])
def test_a_replica_follows_compressed_updates(compression: str) -> None:
    """The shard of a lost rank has the bits that its owner sent to all ranks."""
    opts = run_threads(_trained, 3, AdamW(0.1), {"compression": compression})
    before = run_threads(lambda group: _bits(opts[group.rank]), 3)[0]

    def reform(group: MemoryGroup) -> Bits:
        joins = group.rank == 1
        opt = _optimizer(UnjoinedOptimizerGroup(), AdamW(0.1), compression=compression) if joins else opts[group.rank]
        opt.reform(group, [0, None, 2])
        return _bits(opt)

    assert run_threads(reform, 3) == [before] * 3


@pytest.mark.parametrize("former", [[2, 0, 1], [1, 0]], ids=str)
def test_what_compression_owes_moves_with_its_rank(former: list[int]) -> None:
    """Scaled with the size of the world, so that each rank's part counts as much as before."""
    opts = run_threads(_trained, 3, AdamW(0.1), {"compression": "int8"})
    owed = run_threads(lambda group: opts[group.rank].state_dict()["error_feedback"][LOST]["a"], 3)[0]
    assert np.any(owed)

    def reform(group: MemoryGroup) -> Any:
        opt = opts[former[group.rank]]
        opt.reform(group, former)
        return opt.state_dict()["error_feedback"][LOST]["a"]

    assert np.array_equal(run_threads(reform, len(former))[0], owed[former] * np.float32(len(former) / 3))


@pytest.mark.parametrize(
    ("former", "back", "error", "message"),
    [
        ([None, 1, None], 0, StateLost, "no other rank has a replica of the shards of [2]"),
        ([None, None], 0, ConfigurationError, "expected the earlier number of at least one rank"),
        ([0], 1, ConfigurationError, "former is [0]; expected one entry for each of 2 ranks"),
        ([1, 0], 0, MismatchError, "former[0] is 1, but that rank had number 0"),
    ],
    ids=["lost", "nobody", "length", "number"],
)
def test_a_world_without_a_shard_is_refused(
    former: list[int | None], back: int, error: type[Exception], message: str
) -> None:
    """On every rank, with the numbers that were passed."""
    opts = run_threads(_trained, 3, AdamW(0.1), {})

    def reform(group: MemoryGroup) -> None:
        joins = any(former) and former[group.rank] is None
        opt = _optimizer(UnjoinedOptimizerGroup(), AdamW(0.1)) if joins else opts[group.rank]
        opt.reform(group, former)

    with pytest.raises(error) as refusal:
        run_threads(reform, len(former) + back)
    assert message in str(refusal.value)


def test_survivors_at_different_updates_are_named() -> None:
    """One that did not roll back, with both numbers."""
    opts = run_threads(_trained, 2, AdamW(0.1), {})
    opts[1].rollback(DONE - 1)
    with pytest.raises(MismatchError, match="updates is 3 on rank 0 and 2 on rank 1"):
        run_threads(lambda group: opts[group.rank].reform(group, [0, 1]), 2)


def test_only_the_last_update_can_be_undone() -> None:
    """The error has the number that was passed and the one that was expected; an optimizer without copies says so."""
    (opt,) = run_threads(_trained, 1, AdamW(0.1), {})
    with pytest.raises(ConfigurationError, match="to=1; expected 3"):
        opt.rollback(1)
    (other,) = run_threads(_trained, 1, AdamW(0.1), {"elastic": False})
    for call in (other.rollback, lambda: other.prepare(UnjoinedOptimizerGroup(), [0])):
        with pytest.raises(ConfigurationError, match="elastic=True"):
            call()


@pytest.mark.parametrize(
    ("redundancy", "where", "ranks", "message"),
    [
        (1, "state", (1,), "memory of the optimizer on ranks [1] changed after update 99"),
        (1, "replica", (1,), "memory of the optimizer on ranks [1] changed after update 100"),
        (1, "weights", (1,), "before update 100 the weights on ranks [1] differed from those of the others"),
        (
            1,
            "unseen",
            (1, 2),
            "rank 1 differs from its replica on rank 2: memory or arithmetic of one of them is wrong",
        ),
        (2, "unseen", (1,), "differs from its replica on rank 2, rank 0: memory or arithmetic of rank 1 is wrong"),
    ],
)
def test_memory_that_changes_is_found(redundancy: int, where: str, ranks: tuple[int, ...], message: str) -> None:
    """On every rank. A bit flips in the part that is checked at that time, or (`unseen`) in another part.

    Ranks compare after each `EVERY` updates, and not in between: that would be a collective in each update.
    """
    found_after = []

    def train(group: MemoryGroup) -> None:
        opt = _optimizer(group, AdamW(0.1), redundancy=redundancy)
        mirror = (context := vars(opt)["_cut"].context).copies.mirrors[0]
        _train(opt, PARTS if where == "replica" else PARTS - 1)  # then the last part is checked
        if group.rank == 1:
            bucket = mirror.buckets[0 if where == "unseen" else -1]
            of_bucket = (mirror.values if where == "replica" else context.arenas.own_values)(bucket)
            values = of_bucket["weights"] if where == "weights" else list(of_bucket.values())[-1]
            values.view(np.uint8)[-3] ^= 16
        try:
            _train(opt, 2 * PARTS + EVERY)
        finally:
            found_after.append(opt.updates % EVERY)

    with pytest.raises(StateCorrupt) as error:
        run_threads(train, 3)
    assert error.value.ranks == ranks
    assert message in str(error.value)
    assert found_after == [0, 0, 0]
