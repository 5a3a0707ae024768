"""Reductions between more pods than the chain is for: a tree of the pods' sums, whatever is reduced."""

import os
import signal
import threading

import numpy as np
import pytest
from support.deadlines import patient
from support.pods import Pods
from support.ranks import started_ranks, tell

import ringtrain as rt
from ring.reference import DTYPES, FLOATS, OPS, Array, assert_same_bits, folded, made
from ring.worlds import all_raise, end_one, world_of
from ringtrain._core.communicators import hierarchical
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.reduction.ops import UFUNCS
from ringtrain._core.world.config import WorkerConfig
from ringtrain.errors import MismatchError, PeerLost

LENGTHS = {"one": 1, "few": 7, "short": 5_003, "halved": 150_001, "many-sections": 1_000_003}


def by_tree(parts: list[Array], ranks_a_pod: int, op: rt.ReduceOp) -> Array:
    """The pods' left folds, in pairs and pairs of pairs. What is over a power of two is paired first."""
    dtype = parts[0].dtype
    wide = [part.astype(np.float32) if dtype.itemsize == 2 else part for part in parts]
    sums = []
    for first in range(0, len(wide), ranks_a_pod):
        total = wide[first]
        for part in wide[first + 1 : first + ranks_a_pod]:
            total = UFUNCS[op](total, part)
        sums.append(total)
    over = len(sums) - (1 << (len(sums).bit_length() - 1))
    sums[: 2 * over] = [UFUNCS[op](sums[2 * i], sums[2 * i + 1]) for i in range(over)]
    while len(sums) > 1:
        sums = [UFUNCS[op](a, b) for a, b in zip(sums[::2], sums[1::2], strict=True)]
    total = sums[0]
    if op is rt.Average:
        total = np.divide(total, len(parts), dtype=total.dtype)
    with np.errstate(over="ignore"):  # products of half types
        return np.asarray(total).astype(dtype)


def uneven(length: int, size: int) -> list[int]:
    """Bounds of chunks of which two are empty and the last is the longest."""
    return [0, 0, *(length * part // (2 * size) for part in range(1, size - 3)), length // 2, length // 2, length]


@pytest.mark.parametrize("pods", [2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
def test_every_length_is_the_same_tree(pods: int, length: int) -> None:
    """Allreduce, in place as well, and reduce-scatter of uneven chunks, of pods that are a power of two or not."""
    size = 2 * pods
    parts = [made((length,), "float32", rank) for rank in range(size)]
    expected = by_tree(parts, 2, rt.Average)
    bounds = uneven(length, size)

    def work(rank: int) -> tuple[Array, Array, Array]:
        scattered, in_place = parts[rank].copy(), parts[rank].copy()
        group_of().reduce_scatter(scattered, bounds, rt.Average).wait()
        rt.allreduce_(in_place, rt.Average)
        return rt.allreduce(parts[rank], rt.Average), in_place, scattered[bounds[rank] : bounds[rank + 1]]

    with world_of(size, "pods", chain_pods_most=1) as world:
        for rank, (reduced, in_place, own) in enumerate(world.run(work)):
            assert_same_bits(reduced, expected)
            assert_same_bits(in_place, expected)
            assert_same_bits(own, expected[bounds[rank] : bounds[rank + 1]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [13, 200_003], ids=["short", "long"])
def test_every_type_and_operation_is_the_same_tree(dtype: str, length: int) -> None:
    """Half types travel as float32 sums and are rounded once."""
    ops = [op for op in OPS if op is not rt.Average or dtype in FLOATS]
    parts = [made((length,), dtype, rank) for rank in range(9)]
    bounds = [length * part // 9 for part in range(10)]

    def work(rank: int) -> list[tuple[Array, Array]]:
        got = []
        for op in ops:
            scattered = parts[rank].copy()
            group_of().reduce_scatter(scattered, bounds, op).wait()
            got.append((rt.allreduce(parts[rank], op), scattered[bounds[rank] : bounds[rank + 1]]))
        return got

    with world_of(9, "pods", ranks_a_pod=3, chain_pods_most=2) as world:
        for rank, got in enumerate(world.run(work)):
            for op, (reduced, own) in zip(ops, got, strict=True):
                expected = by_tree(parts, 3, op)
                assert_same_bits(reduced, expected)
                assert_same_bits(own, expected[bounds[rank] : bounds[rank + 1]])


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 13])
@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
def test_ranks_that_share_no_memory_are_a_tree_of_ranks(size: int, length: int) -> None:
    """The same reductions of the same code: a rank is a pod."""
    parts = [made((length,), "float32", rank) for rank in range(size)]
    expected = by_tree(parts, 1, rt.Average)
    bounds = uneven(length, size) if size > 4 else [length * part // size for part in range(size + 1)]

    def work(rank: int) -> tuple[Array, Array, Array, Array]:
        scattered, in_place = parts[rank].copy(), parts[rank].copy()
        group_of().reduce_scatter(scattered, bounds, rt.Average).wait()
        own = scattered[bounds[rank] : bounds[rank + 1]].copy()
        group_of().all_gather(scattered, bounds).wait()
        rt.allreduce_(in_place, rt.Average)
        return rt.allreduce(parts[rank], rt.Average), in_place, own, scattered

    with world_of(size, direct_ranks_most=1) as world:
        for rank, (reduced, in_place, own, gathered) in enumerate(world.run(work)):
            assert_same_bits(reduced, expected)
            assert_same_bits(in_place, expected)
            assert_same_bits(own, expected[bounds[rank] : bounds[rank + 1]])
            assert_same_bits(gathered, expected)
    for rank, part in enumerate(parts):
        assert_same_bits(part, made((length,), "float32", rank))  # what is sent from where it lies is not changed


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_operation_is_the_same_tree_of_ranks(dtype: str) -> None:
    """Short ones and long ones."""
    ops = [op for op in OPS if op is not rt.Average or dtype in FLOATS]
    parts = [made((200_003,), dtype, rank) for rank in range(5)]
    with world_of(5, direct_ranks_most=4) as world:
        for length in (13, 200_003):
            for op in ops:
                expected = by_tree([part[:length] for part in parts], 1, op)
                for got in world.run(lambda rank, n=length, op=op: rt.allreduce(parts[rank][:n], op)):
                    assert_same_bits(got, expected)


def test_a_tree_of_ranks_is_between_more_than_64() -> None:
    """By itself; and up to the bound it is the fold in rank order."""
    parts = [made((20_003,), "float32", rank) for rank in range(65)]
    with world_of(65) as world:
        evens = world.run(lambda rank: rt.add_process_set(list(range(0, 65, 2))))
        reduced = world.run(lambda rank: [rt.allreduce(parts[rank][:n], rt.Sum) for n in (1, 20_003)])
        of_set = world.run(
            lambda rank: None if rank % 2 else rt.allreduce(parts[rank], rt.Sum, process_set=evens[rank])
        )
    for one, long in reduced:
        assert_same_bits(one, by_tree([part[:1] for part in parts], 1, rt.Sum))
        assert_same_bits(long, by_tree(parts, 1, rt.Sum))
    for got in of_set[::2]:
        assert_same_bits(got, folded(parts[::2], rt.Sum))


@pytest.mark.parametrize("odd_one", [0, 4])
@pytest.mark.parametrize("lengths", [(10, 11), (10, 600_000), (600_000, 600_001)])
def test_ranks_without_pods_that_mean_different_things_are_told(odd_one: int, lengths: tuple[int, int]) -> None:
    with world_of(5, direct_ranks_most=1) as world:
        errors = world.errors(lambda rank: rt.allreduce(np.ones(lengths[rank == odd_one]), name="w"))
        all_raise(errors, MismatchError, f"rank {odd_one}")


def test_up_to_the_bound_it_is_the_fold_in_rank_order() -> None:
    """The tree's bits are others than those of the chain, so that a world has one of them for all lengths."""
    parts = [made((200_003,), "float32", rank) for rank in range(8)]
    with world_of(8, "pods", chain_pods_most=4) as world:
        for reduced in world.run(lambda rank: rt.allreduce(parts[rank], rt.Sum)):
            assert_same_bits(reduced, folded(parts, rt.Sum))
    assert by_tree(parts, 2, rt.Sum).tobytes() != folded(parts, rt.Sum).tobytes()


def test_between_more_than_twelve_pods_it_is_the_tree() -> None:
    """By itself, of a number and of a tensor."""
    parts = [made((20_003,), "float32", rank) for rank in range(26)]
    with world_of(26, "pods") as world:
        reduced = world.run(lambda rank: [rt.allreduce(parts[rank][:n], rt.Sum) for n in (1, 20_003)])
    for one, long in reduced:
        assert_same_bits(one, by_tree([part[:1] for part in parts], 2, rt.Sum))
        assert_same_bits(long, by_tree(parts, 2, rt.Sum))


@pytest.mark.parametrize("late", range(6))
def test_a_late_rank_changes_no_bit(late: int) -> None:
    """Whoever comes last, when all others wait for it in their pods and columns."""
    parts = [made((300_001,), "float32", rank) for rank in range(6)]
    expected = by_tree(parts, 2, rt.Sum)
    with world_of(6, "pods", chain_pods_most=1) as world:
        others = threading.Semaphore(0)

        def work(rank: int) -> Array:
            values = parts[rank].copy()
            if rank == late:
                assert all(others.acquire(timeout=patient(60)) for _ in range(5))
            pending = group_of().all_reduce(values)
            others.release()
            pending.wait()
            return values

        for reduced in world.run(work):
            assert_same_bits(reduced, expected)


@pytest.mark.parametrize("odd_one", [0, 3, 5])
@pytest.mark.parametrize("lengths", [(10, 11), (10, 600_000), (600_000, 600_001)])
def test_ranks_that_mean_different_things_are_told(odd_one: int, lengths: tuple[int, int]) -> None:
    """All of them, in every pod."""
    with world_of(6, "pods", chain_pods_most=1) as world:
        errors = world.errors(lambda rank: rt.allreduce(np.ones(lengths[rank == odd_one]), name="w"))
        all_raise(errors, MismatchError, f"rank {odd_one}")


def allreduce_for_ever(length: int) -> str:
    hierarchical.GATHER_PODS_MOST_DIRECT = 1  # type: ignore[misc]
    context = ProcessGroupContext(WorkerConfig.from_env(os.environ), None, chain_pods_most=1, direct_ranks_most=1)
    with context.entered():
        values = np.ones(length, np.float32)
        rt.allreduce_(values)
        tell("running")
        try:
            while True:
                rt.allreduce_(values, rt.Max)
                rt.allgather(values[:50_000])
        except PeerLost as lost:
            return str(lost)
        finally:
            context.close()


@pytest.mark.parametrize(
    ("victim", "number", "length"),
    [
        pytest.param(0, signal.SIGKILL, 1_000_000, id="one-that-acts-by-turns"),
        pytest.param(3, signal.SIGKILL, 100, id="its-partner-in-a-short-one"),
        pytest.param(5, signal.SIGKILL, 1_000_000, id="one-alone-in-its-node"),
        pytest.param(2, signal.SIGSTOP, 1_000_000, id="stopped"),
    ],
)
def test_a_lost_rank_is_named_in_every_pod(victim: int, number: int, length: int) -> None:
    """In the middle of reductions and gathers, wherever its pod is in the tree."""
    with started_ranks(allreduce_for_ever, 6, length, env_of=Pods(3, timeout_s=6)) as ranks:
        end_one(ranks, 6, victim, number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_rank_of_a_tree_of_ranks_is_named(number: int) -> None:
    """By all, those as well that had nothing to do with it."""
    env = {"RINGTRAIN_TRANSPORT": "grpc", "RINGTRAIN_TIMEOUT": "6"}
    with started_ranks(allreduce_for_ever, 5, 1_000_000, env=env) as ranks:
        end_one(ranks, 5, 3, number)
