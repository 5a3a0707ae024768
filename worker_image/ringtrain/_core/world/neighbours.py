"""Choice of the ranks that watch each other and pass on failures, computed from rank numbers only.

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
    """Return whether a world of `size` ranks is so small that each rank watches all others."""
    return size <= MESH_MOST


def partner_ranks(rank: int, size: int) -> tuple[int, ...]:
    """Return the ranks with which `rank` has a handshake: all others, or in a large world about 2 log2 N of them.

    The handshake is part of the start of the world. The partners of `rank` include all ranks that `rank` watches or
    notifies, and all that watch `rank`.
    """
    if is_mesh(size):
        return tuple(sorted(_ranks_after(rank, size)))
    distances = [1 << power for power in range((size - 1).bit_length())]
    return tuple(sorted({(rank + sign * distance) % size for distance in distances for sign in (1, -1)}))


def near_ranks(rank: int, ranks: Collection[int]) -> tuple[int, ...]:
    """Return the few ranks that `rank` asks about the state of all `ranks`. `ranks` includes `rank`.

    If every rank asked all others, the number of requests would grow with the square of the number of ranks.
    """
    ordered = sorted(ranks)
    return tuple(ordered[position] for position in partner_ranks(ordered.index(rank), len(ordered)))


def watched_ranks(rank: int, size: int, left: Collection[int] = ()) -> tuple[int, ...]:
    """Return the ranks that `rank` watches; ranks in `left`, which have shut down normally, are skipped."""
    peers = [peer for peer in _ranks_after(rank, size) if peer not in left]
    return tuple(peers if is_mesh(size) else peers[:_WATCHED])


def witness_ranks(rank: int, size: int, excluded: Collection[int]) -> tuple[int, ...]:
    """Return the ranks that watched `rank` and so know how it ended, without those in `excluded`."""
    before = [peer for peer in reversed(_ranks_after(rank, size)) if peer not in excluded]
    return tuple(before[:_WATCHED])


def failure_notified_ranks(size: int) -> list[range]:
    """Return the ranks to notify of a failure in a world of `size` ranks, as distances from the notifying rank.

    Each range is a group, of which one living rank is enough. The nearest living rank is the first of its range, so
    that dead ranks can't isolate any other.
    """
    starts = [1 << power for power in range((size - 1).bit_length())]
    return [range(start, min(2 * start, size)) for start in starts]


def _ranks_after(rank: int, size: int) -> list[int]:
    return [(rank + distance) % size for distance in range(1, size)]
