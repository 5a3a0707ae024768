"""How a flat buffer is cut: into one chunk a rank, and each chunk into segments."""

import functools
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

Bounds = tuple[int, ...]  # chunk of position p: bounds[p] to bounds[p + 1]

# Where segments are passed on, a chunk has at least so many, down to where their fixed cost shows: what is passed
# on waits for whole ones.
_PASSED_SEGMENTS: Final = 4
_LEAST_PASSED_BYTES: Final = 256 << 10


@functools.lru_cache(maxsize=4096)  # 2 us of a small collective's 25
def even_bounds(length: int, parts: int) -> Bounds:
    """Cut `length` into `parts` as even as can be; the first ones get one more."""
    base, more = divmod(length, parts)
    return tuple(position * base + min(position, more) for position in range(parts + 1))


def segments(start: int, end: int, step: int) -> list[slice]:
    """Cut `start` to `end` into slices of at most `step`; none if it is empty."""
    return [slice(at, min(at + step, end)) for at in range(start, end, step)]


def segments_at(bounds: Bounds, step: int) -> list[list[slice]]:
    """The segments of every chunk."""
    return [segments(start, end, step) for start, end in pairwise(bounds)]


def passing_bytes(longest: int, most: int) -> int:
    """How long a segment is where segments are passed on, if the longest chunk has `longest` bytes."""
    return min(max(longest // _PASSED_SEGMENTS, _LEAST_PASSED_BYTES), most)


def offsets(lengths: Sequence[int]) -> Bounds:
    """Bounds of chunks of these lengths."""
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    return tuple(bounds)
