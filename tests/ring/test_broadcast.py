"""Broadcasts of more than a few KiB: trees of pods, or of ranks that share no memory."""

import signal
from collections import Counter

import numpy as np
import pytest
from support.pods import Pods
from support.ranks import started_ranks

import ringtrain as rt
from ring.reference import DTYPES, Array, assert_same_bits, made
from ring.worlds import all_raise, end_one, until_a_peer_is_lost, world_of
from ringtrain._core.communicators.broadcast import BroadcastTrees, children
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain.errors import MismatchError

# Below what goes in one section, what does in two, and many sections of the segments below.
LENGTHS = {"one-section": 5_001, "few-sections": 20_003, "many-sections": 300_007}


@pytest.mark.parametrize("size", [*range(1, 20), 64, 65, 127, 128, 129])
def test_every_place_gets_all_sections_and_passes_few_on(size: int) -> None:
    """In each tree there is a way from the root to all. Of many, none but the root sends in both trees, or to more
    than two, and the root sends to one in each."""
    trees = BroadcastTrees(size, is_direct=False)
    senders: Counter[int] = Counter()
    for tree in range(trees.number):
        assert all(1 <= trees.hops(place, tree) <= size.bit_length() for place in range(1, size))
        below = {place: children(trees, place, tree) for place in range(size)}
        assert sorted(place for places in below.values() for place in places) == list(range(1, size))
        if trees.is_few:
            continue
        assert len(below[0]) == 1
        assert all(len(places) <= 2 for places in below.values())
        senders.update(place for place, places in below.items() if places and place)
    assert all(count == 1 for count in senders.values())


@pytest.mark.parametrize("pods", [2, 3, 6, 7, 8])
@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
def test_all_pods_get_what_the_root_has(pods: int, length: int) -> None:
    """Of whatever pod the root is, and wherever in it; in place, too."""
    parts = [made((length,), "float32", rank) for rank in range(2 * pods)]

    def work(rank: int) -> list[tuple[Array, Array]]:
        got = []
        for root in range(2 * pods):
            in_place = parts[rank].copy()
            rt.broadcast_(in_place, root)
            got.append((rt.broadcast(parts[rank], root), in_place))
        return got

    with world_of(2 * pods, "pods", segment_bytes=1 << 16) as world:
        for got in world.run(work):
            for root, (one, in_place) in enumerate(got):
                assert_same_bits(one, parts[root])
                assert_same_bits(in_place, parts[root])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_reaches_pods_of_three(dtype: str) -> None:
    """Of a length that neither pods nor ranks divide, also in memory that the ranks of a pod map."""
    parts = [made((100_003,), dtype, rank) for rank in range(9)]

    def work(rank: int) -> tuple[Array, Array]:
        mapped = group_of().allocate(len(parts[rank]), parts[rank].dtype)
        mapped[:] = parts[rank]
        rt.broadcast_(mapped, 4)
        return rt.broadcast(parts[rank], 8), mapped.copy()

    with world_of(9, "pods", ranks_a_pod=3) as world:
        for one, mapped in world.run(work):
            assert_same_bits(one, parts[8])
            assert_same_bits(mapped, parts[4])


@pytest.mark.parametrize("transport", ["memory", "grpc"])
@pytest.mark.parametrize("size", [2, 3, 4, 6, 7, 8, 13])
def test_all_ranks_that_share_no_memory_get_what_the_root_has(transport: str, size: int) -> None:
    parts = [made((length,), "float32", rank) for rank, length in zip(range(size), [300_007] * size, strict=True)]
    with world_of(size, transport, segment_bytes=1 << 16) as world:
        for root in {0, 1, size - 1}:
            for length in (0, 1, *LENGTHS.values()):
                for got in world.run(lambda rank, n=length, root=root: rt.broadcast(parts[rank][:n], root)):
                    assert_same_bits(got, parts[root][:length])


def test_a_process_set_of_some_ranks_of_each_pod_is_flat() -> None:
    parts = [made((100_003,), "float32", rank) for rank in range(16)]
    odd = list(range(1, 16, 2))

    def work(rank: int) -> Array | None:
        of_odd = rt.add_process_set(odd)
        return rt.broadcast(parts[rank], 9, process_set=of_odd) if rank in odd else None

    with world_of(16, "pods") as world:
        for rank, got in enumerate(world.run(work)):
            if rank in odd:
                assert_same_bits(got, parts[9])


@pytest.mark.parametrize("size", [8, 9, 16])
@pytest.mark.parametrize("transport", ["memory", "pods"])
@pytest.mark.parametrize("odd_one", [0, 1, 5])
@pytest.mark.parametrize("differs", ["length", "root"])
def test_ranks_that_mean_different_things_are_told(size: int, transport: str, odd_one: int, differs: str) -> None:
    """Whether they send to each other or not: nobody comes back from it."""
    lengths, roots = ([30_000] * size, [1] * size)
    if differs == "length":
        lengths[odd_one] += 1
    else:
        roots[odd_one] = 2
    with world_of(size, transport) as world:
        errors = world.errors(lambda rank: rt.broadcast(np.ones(lengths[rank]), roots[rank], name="w"))
        all_raise(errors, MismatchError, f"rank {odd_one}")


def broadcast_for_ever(root: int) -> str:
    rt.init()
    values = np.ones(1_000_000, np.float32)
    return until_a_peer_is_lost(lambda: rt.broadcast_(values, root))


@pytest.mark.parametrize(
    ("victim", "number", "pods"),
    [
        *((0, signal.SIGKILL, 2), (1, signal.SIGSTOP, 2), (6, signal.SIGKILL, 2)),
        *((0, signal.SIGSTOP, 0), (1, signal.SIGKILL, 0), (6, signal.SIGSTOP, 0)),
    ],
)
def test_a_lost_rank_is_named_by_all(victim: int, number: int, pods: int) -> None:
    """Killed or stopped in the middle: the root, one that passes sections on, and one that only gets them."""
    size = 8
    world = Pods(size // 2, timeout_s=6) if pods else Pods(size, timeout_s=6, each=1)
    with started_ranks(broadcast_for_ever, size, 0, env_of=world) as ranks:
        end_one(ranks, size, victim, number)
