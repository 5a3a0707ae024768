"""Who watches whom, and who passes a verdict on to whom: pure arithmetic on ranks.

In a world of up to `MESH_MOST` ranks everyone watches everyone, and whoever finds a failure tells everyone. In a
larger one each rank meets those at distances 1, 2, 4, ..., watches the next two, and passes a verdict on to
those at distances 1, 2, 4, ...: after Chord's fingers (Stoica et al. 2001).
"""

from collections.abc import Collection
from typing import Final

MESH_MOST: Final = 16
# Two ranks watch each one: one of them may die together with it, or leave.
_WATCHED: Final = 2


def is_mesh(size: int) -> bool:
    """Whether each rank of a world of `size` watches all others."""
    return size <= MESH_MOST


def partner_ranks(rank: int, size: int) -> tuple[int, ...]:
    """The ranks that `rank` meets when the world begins, and that meet it: all others in a mesh, and else those at
    distances 1, 2, 4, ... on both sides.

    They include those that it watches, that watch it, and that it tells of a verdict.
    """
    if is_mesh(size):
        return tuple(sorted(_ranks_after(rank, size)))
    distances = [1 << power for power in range((size - 1).bit_length())]
    return tuple(sorted({(rank + sign * distance) % size for distance in distances for sign in (1, -1)}))


def near_ranks(rank: int, ranks: Collection[int]) -> tuple[int, ...]:
    """The partners of `rank` among `ranks`, as if these were a world; `rank` is one of them.

    Whom it asks about the others: if all asked all, questions would grow with the square of the ranks.
    """
    ordered = sorted(ranks)
    return tuple(ordered[position] for position in partner_ranks(ordered.index(rank), len(ordered)))


def watched_ranks(rank: int, size: int, left: Collection[int] = ()) -> tuple[int, ...]:
    """The ranks that `rank` watches, where those in `left` have left in good order."""
    peers = [peer for peer in _ranks_after(rank, size) if peer not in left]
    return tuple(peers if is_mesh(size) else peers[:_WATCHED])


def witness_ranks(rank: int, size: int, gone: Collection[int]) -> tuple[int, ...]:
    """The ranks that watch `rank` where those in `gone` do not: who can say how it ended."""
    before = [peer for peer in reversed(_ranks_after(rank, size)) if peer not in gone]
    return tuple(before[:_WATCHED])


def failure_told_ranks(size: int) -> list[range]:
    """Whom a rank tells of a verdict, as distances from it: of each range the first one that is there.

    The nearest living rank is the first of its range, so that no number of dead ranks cuts anybody off.
    """
    starts = [1 << power for power in range((size - 1).bit_length())]
    return [range(start, min(2 * start, size)) for start in starts]


def _ranks_after(rank: int, size: int) -> list[int]:
    return [(rank + distance) % size for distance in range(1, size)]
