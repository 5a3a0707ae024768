"""Several tensors that are reduced as if they lay behind each other, and stay where they are."""

from collections.abc import Sequence
from itertools import pairwise

from ringtrain.reduction.cuts import even_bounds, offsets, segments
from ringtrain.reduction.fold import Flat


def cut_tensors(pieces: Sequence[Flat], parts: int, step: int) -> list[list[tuple[Flat, slice]]]:
    """Cut all pieces into `parts` chunks, and each chunk into segments of at most `step` elements.

    Returns for each chunk the segments, and where they are in all pieces behind each other. No segment is part of
    two pieces.
    """
    starts = offsets([len(piece) for piece in pieces])
    return [
        [
            (piece[cut.start - first : cut.stop - first], cut)
            for piece, (first, last) in zip(pieces, pairwise(starts), strict=True)
            for cut in segments(max(start, first), min(end, last), step)
        ]
        for start, end in pairwise(even_bounds(starts[-1], parts))
    ]


def without_short_ones(pieces: Sequence[Flat], target: Flat, least_bytes: int) -> list[Flat]:
    """`pieces`, but with neighbours shorter than `least_bytes` copied together, to their place in `target`."""
    found: list[Flat] = []
    start = at = 0  # of what has been copied and is not in `found`; of the next piece
    for piece in pieces:
        is_short = piece.nbytes < least_bytes
        if at > start and (not is_short or (at - start) * target.itemsize >= least_bytes):
            found.append(target[start:at])
            start = at
        if is_short:
            target[at : at + len(piece)] = piece
        else:
            found.append(piece)
            start += len(piece)
        at += len(piece)
    if at > start:
        found.append(target[start:at])
    return found or [target]
