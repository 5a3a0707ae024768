"""Watch relations between ranks in a large world; a verdict reaches every living rank, for any set of dead ranks."""

from collections import deque
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtrain._core.world.neighbours import (
    MESH_MOST,
    failure_notified_ranks,
    is_mesh,
    partner_ranks,
    watched_ranks,
    witness_ranks,
)

LARGE = st.integers(MESH_MOST + 1, 1024)


def reached(size: int, first: int, dead: frozenset[int]) -> tuple[set[int], int]:
    """Return the ranks that a verdict reported by `first` reaches, and the most messages that one rank sends."""
    heard, queue, most = {first}, deque([first]), 0
    while queue:
        rank = queue.popleft()
        sent = 0
        for group in failure_notified_ranks(size):
            ranks = [(rank + distance) % size for distance in group]
            targets = ranks[:1] if ranks[0] not in dead else ranks
            sent += len(targets)
            new = set(targets) - dead - heard
            heard |= new
            queue.extend(new)
        most = max(most, sent)
    return heard, most


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_verdict_reaches_all_with_up_to_three_dead(number: int) -> None:
    """Any of them, adjacent or not, in worlds around a power of two."""
    for size in (17, 31, 32, 33):
        for dead in map(frozenset, combinations(range(1, size), number)):
            assert reached(size, 0, dead)[0] == set(range(size)) - dead


@pytest.mark.slow
@given(st.data())
def test_a_verdict_reaches_all_whoever_is_dead(data: st.DataObject) -> None:
    """Also where whole pods are, or all but a few."""
    size = data.draw(LARGE)
    dead = data.draw(st.frozensets(st.integers(0, size - 1), max_size=size - 1))
    first = data.draw(st.sampled_from(sorted(set(range(size)) - dead)))
    assert reached(size, first, dead)[0] == set(range(size)) - dead


def test_nobody_tells_many_where_all_live() -> None:
    """Of 1,024 ranks each tells ten."""
    assert reached(1024, 5, frozenset()) == (set(range(1024)), 10)


@pytest.mark.slow
@given(st.data())
def test_every_rank_that_has_not_left_is_watched_by_its_witnesses(data: st.DataObject) -> None:
    """By the two nearest before it that have not left: who asks them learns whether it left."""
    size = data.draw(LARGE)
    left = data.draw(st.frozensets(st.integers(0, size - 1), max_size=size - 3))
    there = sorted(set(range(size)) - left)
    rank = data.draw(st.sampled_from(there))
    watchers = {other for other in there if rank in watched_ranks(other, size, left)}
    assert watchers == set(witness_ranks(rank, size, left))
    assert len(watchers) == 2


def test_a_small_world_is_a_mesh() -> None:
    """Up to the bound everyone watches everyone."""
    assert is_mesh(MESH_MOST)
    assert not is_mesh(MESH_MOST + 1)
    assert set(watched_ranks(3, MESH_MOST)) == set(range(MESH_MOST)) - {3}
    assert watched_ranks(15, 17) == (16, 0)


@given(LARGE)
def test_partners_are_each_others(size: int) -> None:
    """Among them are those that a rank watches, that watch it, and that it tells of a verdict first."""
    for rank in {0, 1, size // 2, size - 1}:
        found = set(partner_ranks(rank, size))
        assert all(rank in partner_ranks(peer, size) for peer in found)
        assert found >= {*watched_ranks(rank, size), *witness_ranks(rank, size, ())}
        assert found >= {(rank + group.start) % size for group in failure_notified_ranks(size)}
        assert rank not in found
        assert len(found) <= 2 * (size - 1).bit_length()
