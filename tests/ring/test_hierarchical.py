"""Pods of several ranks: shared memory inside, gRPC between; for what transports have in common, see elsewhere."""

import signal
from typing import Any

import numpy as np
import pytest
from support.pods import Pods
from support.ranks import run_ranks, started_ranks, tell

import ringtrain as rt
from ring.reference import Array, assert_same_bits, folded, made
from ring.worlds import world_of
from ringtrain.communicators.hierarchical import HierarchicalCommunicator
from ringtrain.errors import MismatchError, PeerLost
from ringtrain.process_groups.process_sets import group_of


def is_hierarchical() -> bool:
    rt.init()
    return isinstance(group_of().communicator, HierarchicalCommunicator)


def test_pods_of_several_ranks_choose_it() -> None:
    """By themselves."""
    assert run_ranks(is_hierarchical, 4, env_of=Pods(2)) == [True] * 4


@pytest.mark.parametrize("length", [100, 40_000], ids=["short-chunks", "long-chunks"])
@pytest.mark.parametrize("pods", [2, 6], ids=["to-the-other-pods", "to-few-ranks"])
def test_every_rank_gets_every_chunk(pods: int, length: int) -> None:
    """However many pods there are: between many, short chunks have fewer partners in the flat exchange."""
    size = 2 * pods
    bounds = [length * rank + min(rank, 3) * 997 for rank in range(size + 1)]
    whole = made((bounds[-1],), "float32", 0)
    with world_of(size, "pods") as world:

        def gathered(rank: int) -> Array:
            buffer = np.zeros_like(whole)
            own = slice(bounds[rank], bounds[rank + 1])
            buffer[own] = whole[own]
            group_of().all_gather(buffer, bounds).wait()
            return buffer

        for got in world.run(gathered):
            assert_same_bits(got, whole)


@pytest.mark.parametrize("pods", [2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("length", [1, 7, 70_001, 1_000_003], ids=["one", "few", "few-segments", "many-segments"])
def test_a_chain_of_pods_is_the_fold_in_rank_order(pods: int, dtype: str, length: int) -> None:
    """Allreduce, reduce-scatter and all-gather of uneven chunks, one of them empty."""
    size = 2 * pods
    parts = [made((length,), dtype, rank) for rank in range(size)]
    expected = folded(parts, rt.Average)
    cuts = [0, 0, *(length * part // (size + 1) for part in range(1, size - 1)), length]

    def work(rank: int) -> tuple[Any, Any, Any]:
        scattered = parts[rank].copy()
        group_of().reduce_scatter(scattered, cuts, rt.Average).wait()
        own = scattered[cuts[rank] : cuts[rank + 1]].copy()
        gathered = np.zeros_like(parts[rank])
        gathered[cuts[rank] : cuts[rank + 1]] = own
        group_of().all_gather(gathered, cuts).wait()
        return rt.allreduce(parts[rank], rt.Average), own, gathered

    with world_of(size, "pods") as world:
        for rank, (reduced, own, gathered) in enumerate(world.run(work)):
            assert_same_bits(reduced, expected)
            assert_same_bits(own, expected[cuts[rank] : cuts[rank + 1]])
            assert_same_bits(gathered, expected)


@pytest.mark.parametrize("odd_one", [0, 1, 3])
@pytest.mark.parametrize("lengths", [(1, 2), (10, 11), (100_000, 100_001), (10, 100_000)])
def test_ranks_that_mean_different_things_are_told(odd_one: int, lengths: tuple[int, int]) -> None:
    """All of them, whether they sit in one pod or in two."""
    with world_of(4, "pods") as world:
        errors = world.errors(lambda rank: rt.allreduce(np.ones(lengths[rank == odd_one]), name="w"))
    for error in errors:
        assert isinstance(error, MismatchError)
        assert f"rank {odd_one}" in str(error)
        assert str(lengths[0]) in str(error)
        assert str(lengths[1]) in str(error)


def allreduce_for_ever(length: int) -> str:
    rt.init()
    values = np.ones(length, np.float32)
    rt.allreduce_(values)
    tell("running")
    try:
        while True:
            rt.allreduce_(values, rt.Max)
    except PeerLost as lost:
        return str(lost)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("victim", [0, 3])
def test_a_lost_rank_is_named_in_every_pod(number: int, victim: int) -> None:
    with started_ranks(allreduce_for_ever, 4, 1_000_000, env_of=Pods(2, timeout_s=6)) as ranks:
        for rank in range(4):
            assert ranks.message(rank) == "running"
        ranks.signal(victim, number)
        for outcome in ranks.outcomes(ranks=[rank for rank in range(4) if rank != victim]):
            assert outcome.ok, outcome
            assert f"rank {victim}" in outcome.value
