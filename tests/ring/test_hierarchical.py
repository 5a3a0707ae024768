"""Pods of several ranks: shared memory inside, gRPC between; for what transports have in common, see elsewhere."""

import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.pods import Pods
from support.ranks import run_ranks, started_ranks

import ringtrain as rt
from ring.reference import Array, assert_same_bits, folded, made
from ring.worlds import all_raise, end_one, until_a_peer_is_lost, world_of
from ringtrain._core.communicators import hierarchical
from ringtrain._core.communicators.hierarchical import HierarchicalCommunicator
from ringtrain._core.process_groups.group import ProcessGroup
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain.errors import MismatchError

Place = Callable[[ProcessGroup, Array], Array]


def is_hierarchical() -> bool:
    rt.init()
    return isinstance(group_of().communicator, HierarchicalCommunicator)


def test_pods_of_several_ranks_choose_it() -> None:
    """By themselves."""
    assert run_ranks(is_hierarchical, 4, env_of=Pods(2)) == [True] * 4


@pytest.mark.parametrize("length", [100, 40_000], ids=["short-chunks", "long-chunks"])
@pytest.mark.parametrize("most", [8, 1], ids=["from-all-pods", "passed-on"])
@pytest.mark.parametrize("pods", [2, 3, 5, 6, 8])
def test_every_rank_gets_every_chunk(pods: int, most: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pods there are: between many, short chunks have fewer partners in the flat exchange."""
    monkeypatch.setattr(hierarchical, "GATHER_PODS_MOST_DIRECT", most)
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


@pytest.mark.parametrize("most", [8, 1], ids=["from-all-pods", "passed-on"])
@pytest.mark.parametrize("dtype", ["float64", "bool", "uint8"])
def test_every_rank_gets_rows_of_any_number(dtype: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are long on one rank, short on another and none on a third, of pods of three."""
    monkeypatch.setattr(hierarchical, "GATHER_PODS_MOST_DIRECT", most)
    rows = [made(((70_000, 0, 3, 9_001)[rank % 4],), dtype, rank) for rank in range(12)]
    with world_of(12, "pods", ranks_a_pod=3) as world:
        for got in world.run(lambda rank: rt.allgather(rows[rank])):
            assert_same_bits(got, np.concatenate(rows))


def as_it_is(group: ProcessGroup, values: Array) -> Array:
    return values.copy()


def allocated(group: ProcessGroup, values: Array) -> Array:
    """`values` in memory that the ranks of a pod map."""
    memory = group.allocate(len(values), values.dtype)
    memory[:] = values
    return memory


@pytest.mark.parametrize("pods", [2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("length", [1, 7, 70_001, 1_000_003], ids=["one", "few", "few-segments", "many-segments"])
@pytest.mark.parametrize("placed", [as_it_is, allocated])
def test_a_chain_of_pods_is_the_fold_in_rank_order(placed: Place, pods: int, dtype: str, length: int) -> None:
    """Allreduce, reduce-scatter and all-gather of uneven chunks, one of them empty."""
    size = 2 * pods
    parts = [made((length,), dtype, rank) for rank in range(size)]
    expected = folded(parts, rt.Average)
    cuts = [0, 0, *(length * part // (size + 1) for part in range(1, size - 1)), length]

    def work(rank: int) -> tuple[Any, Any, Any]:
        group = group_of()
        scattered = placed(group, parts[rank])
        group.reduce_scatter(scattered, cuts, rt.Average).wait()
        own = scattered[cuts[rank] : cuts[rank + 1]].copy()
        gathered = placed(group, np.zeros_like(parts[rank]))
        gathered[cuts[rank] : cuts[rank + 1]] = own
        group.all_gather(gathered, cuts).wait()
        return rt.allreduce(parts[rank], rt.Average), own, gathered

    with world_of(size, "pods") as world:
        for rank, (reduced, own, gathered) in enumerate(world.run(work)):
            assert_same_bits(reduced, expected)
            assert_same_bits(own, expected[cuts[rank] : cuts[rank + 1]])
            assert_same_bits(gathered, expected)


def test_ranks_of_a_pod_meet_twice_where_they_map_the_buffer() -> None:
    """However many segments it has, and in the group beside the one that has allocated it as well."""
    length, size = 1_000_003, 4
    cuts = [length * part // size for part in range(size + 1)]

    def meetings(rank: int) -> list[int]:
        group = group_of()
        buffer = allocated(group, made((length,), "float32", rank))
        lane = group.parallel_group()
        counts = []
        for one, work in ((group, group.reduce_scatter), (group, group.all_gather), (lane, lane.all_gather)):
            assert isinstance(one.communicator, HierarchicalCommunicator)
            channel = one.communicator._hosts.group._channel
            before = channel.collectives
            work(buffer, cuts).wait()
            counts.append(channel.collectives - before)
        return counts

    with world_of(size, "pods") as world:
        assert world.run(meetings) == [[2, 2, 2]] * size


@pytest.mark.parametrize("odd_one", [0, 1, 3])
def test_ranks_that_cut_a_mapped_buffer_differently_are_told(odd_one: int) -> None:
    with world_of(4, "pods") as world:

        def work(rank: int) -> None:
            buffer = allocated(group_of(), np.ones(100_000, np.float32))
            bounds = [0, 25_000, 50_000, 75_000 + (rank == odd_one), 100_000]
            group_of().reduce_scatter(buffer, bounds).wait()

        all_raise(world.errors(work), MismatchError, f"rank {odd_one}")


@pytest.mark.parametrize("odd_one", [0, 1, 3])
@pytest.mark.parametrize("lengths", [(1, 2), (10, 11), (100_000, 100_001), (10, 100_000)])
def test_ranks_that_mean_different_things_are_told(odd_one: int, lengths: tuple[int, int]) -> None:
    """All of them, whether they sit in one pod or in two."""
    with world_of(4, "pods") as world:
        errors = world.errors(lambda rank: rt.allreduce(np.ones(lengths[rank == odd_one]), name="w"))
        all_raise(errors, MismatchError, f"rank {odd_one}", str(lengths[0]), str(lengths[1]))


def allreduce_for_ever(length: int) -> str:
    rt.init()
    values = np.ones(length, np.float32)
    return until_a_peer_is_lost(lambda: rt.allreduce_(values, rt.Max))


def scatter_and_gather_for_ever(length: int) -> str:
    """In memory that the ranks of a pod map."""
    rt.init()
    group = group_of()
    values, cuts = allocated(group, np.ones(length, np.float32)), [length * part // 4 for part in range(5)]

    def both() -> None:
        group.reduce_scatter(values, cuts, rt.Max).wait()
        group.all_gather(values, cuts).wait()

    return until_a_peer_is_lost(both)


@pytest.mark.parametrize("work", [allreduce_for_ever, scatter_and_gather_for_ever])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("victim", [0, 3])
def test_a_lost_rank_is_named_in_every_pod(number: int, victim: int, work: Callable[[int], str]) -> None:
    with started_ranks(work, 4, 1_000_000, env_of=Pods(2, timeout_s=6)) as ranks:
        end_one(ranks, 4, victim, number)
