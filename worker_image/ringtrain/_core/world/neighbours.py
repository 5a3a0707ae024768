"""Topology of watches and failure notifications: pure arithmetic on ranks.

In a world of up to `MESH_MOST` ranks every rank watches all others, and the one that detects a failure notifies all. In
a larger one each rank has a handshake with those at distances 1, 2, 4, ..., watches the next two, and forwards a
failure to those at distances 1, 2, 4, ...: after Chord's fingers (Stoica et al. 2001).
"""

from collections.abc import Collection
from typing import Final

MESH_MOST: Final = 16
# Two ranks watch each one, because one of them may die together with it, or leave.
_WATCHED: Final = 2


def is_mesh(size: int) -> bool:
    """Return whether each rank of a world of `size` watches all others."""
    return size <= MESH_MOST


def partner_ranks(rank: int, size: int) -> tuple[int, ...]:
    """Return the partners of `rank`, symmetric: all others in a mesh, else those at distances 1, 2, 4, ... on both
    sides.

    They have a handshake when the world begins, and include the ranks that it watches, that watch it, and that it
    notifies.
    """
    if is_mesh(size):
        return tuple(sorted(_ranks_after(rank, size)))
    distances = [1 << power for power in range((size - 1).bit_length())]
    return tuple(sorted({(rank + sign * distance) % size for distance in distances for sign in (1, -1)}))


def near_ranks(rank: int, ranks: Collection[int]) -> tuple[int, ...]:
    """Return the partners of `rank` among `ranks`, as if these were a world; `rank` is one of them.

    It asks these about the others: if all asked all, the requests would grow with the square of the ranks.
    """
    ordered = sorted(ranks)
    return tuple(ordered[position] for position in partner_ranks(ordered.index(rank), len(ordered)))


def watched_ranks(rank: int, size: int, left: Collection[int] = ()) -> tuple[int, ...]:
    """Return the ranks that `rank` watches, if those in `left` have shut down normally."""
    peers = [peer for peer in _ranks_after(rank, size) if peer not in left]
    return tuple(peers if is_mesh(size) else peers[:_WATCHED])


def witness_ranks(rank: int, size: int, excluded: Collection[int]) -> tuple[int, ...]:
    """Return the ranks that watch `rank`, except those in `excluded`; they know how it ended."""
    before = [peer for peer in reversed(_ranks_after(rank, size)) if peer not in excluded]
    return tuple(before[:_WATCHED])


def failure_notified_ranks(size: int) -> list[range]:
    """Return the ranks to notify of a failure, as ranges of distances; of each range the first rank that answers.

    The nearest living rank is the first of its range, so that dead ranks can't isolate any other.
    """
    starts = [1 << power for power in range((size - 1).bit_length())]
    return [range(start, min(2 * start, size)) for start in starts]


def _ranks_after(rank: int, size: int) -> list[int]:
    return [(rank + distance) % size for distance in range(1, size)]
