"""Division of buffers into a chunk per rank and of chunks into segments, also across several separate buffers."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.kernels.library import address_of
from ringtrain._core.reduction.fold import Flat

Bounds = tuple[int, ...]  # chunk of position p: bounds[p] to bounds[p + 1]

# If segments are forwarded, a chunk has at least this many, down to a size at which their fixed cost shows: only whole
# segments are forwarded.
_PASSED_SEGMENTS: Final = 4
_LEAST_PASSED_BYTES: Final = 256 << 10


@functools.lru_cache(maxsize=4096)  # saves 2 us of a small collective's 25
def even_bounds(length: int, parts: int) -> Bounds:
    """Return the bounds of `parts` chunks of a buffer of `length`; chunks differ by at most one element."""
    base, more = divmod(length, parts)
    return tuple(position * base + min(position, more) for position in range(parts + 1))


def cut_segments(start: int, end: int, step: int) -> list[slice]:
    """Return slices of at most `step` elements that cover `start` to `end`; none if that range is empty."""
    return [slice(at, min(at + step, end)) for at in range(start, end, step)]


def segments_at(bounds: Bounds, step: int) -> list[list[slice]]:
    """Return, for each chunk at `bounds`, its slices of at most `step` elements."""
    return [cut_segments(start, end, step) for start, end in pairwise(bounds)]


def cut_passing_bytes(longest: int, most: int) -> int:
    """Return the segment length in bytes if ranks forward segments and the longest chunk has `longest` bytes.

    `most`: upper limit of the result.
    """
    return min(max(longest // _PASSED_SEGMENTS, _LEAST_PASSED_BYTES), most)


def length_offsets(lengths: Sequence[int]) -> Bounds:
    """Return the offsets at which adjacent chunks with these lengths begin, and the end of the last chunk."""
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    return tuple(bounds)


def cut_tensors(pieces: Sequence[Flat], parts: int, step: int) -> list[list[tuple[Flat, slice]]]:
    """Divide the concatenation of `pieces` into `parts` chunks, and each chunk into segments of at most `step`.

    Returns, for each chunk, a list of pairs: a segment, and its slice in the concatenation. No segment crosses pieces.
    """
    places = _places_in_cut(tuple(map(len, pieces)), parts, step)
    return [[(pieces[number][within], cut) for number, within, cut in chunk] for chunk in places]


@functools.lru_cache(maxsize=256)  # saves 2 ms per step with 161 tensors and four ranks
def _places_in_cut(lengths: tuple[int, ...], parts: int, step: int) -> list[list[tuple[int, slice, slice]]]:
    """Return, for each segment of each chunk: the index of its piece, its slice in the piece, and its slice in the
    concatenation."""
    starts = length_offsets(lengths)
    return [
        [
            (number, slice(cut.start - first, cut.stop - first), cut)
            for number, (first, last) in enumerate(pairwise(starts))
            for cut in cut_segments(max(start, first), min(end, last), step)
        ]
        for start, end in pairwise(even_bounds(starts[-1], parts))
    ]


def is_same_memory(piece: Flat, place: Flat) -> bool:
    """Return whether `piece` and `place`, which have the same length, begin at the same address."""
    return address_of(piece) == address_of(place)


def merge_short_pieces(pieces: Sequence[Flat], target: Flat, least_bytes: int) -> list[Flat]:
    """Return `pieces`, but with neighbours shorter than `least_bytes` copied to `target` as one piece."""
    found: list[Flat] = []
    start = at = 0  # of copied data that is not yet in `found`; of the next piece
    for piece in pieces:
        is_short = piece.nbytes < least_bytes
        if at > start and (not is_short or (at - start) * target.itemsize >= least_bytes):
            found.append(target[start:at])
            start = at
        if is_short:
            if not is_same_memory(piece, target[at : at + len(piece)]):
                target[at : at + len(piece)] = piece
        else:
            found.append(piece)
            start += len(piece)
        at += len(piece)
    if at > start:
        found.append(target[start:at])
    return found or [target]


@dataclass(frozen=True)
class ArrayPart:
    """Part of an array of `shape` that this rank has: the elements from `start` on, in C order, as 1-d `values`."""

    values: NDArray[Any]
    shape: tuple[int, ...]
    start: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype


@runtime_checkable
class ReadableArray(Protocol):
    """Interface of an array that is stored elsewhere, such as in a file, and is read in parts."""

    shape: tuple[int, ...]

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return the elements `start:stop` in C order as a 1-d array."""


def elements_of_cut(array: NDArray[Any] | ReadableArray, start: int, stop: int) -> NDArray[Any]:
    """Return the elements `start:stop` of `array` in C order; a ReadableArray reads only these."""
    if isinstance(array, ReadableArray):
        return array.read(start, stop)
    return array.reshape(-1)[start:stop]
