"""Layout of all parameters in memory: flat arrays ("arenas"), buckets, one shard per rank, segments for norms.

Computed once, only from names, shapes and dtypes, so that every rank gets the same result.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

# A norm is summed in segments of this many elements of one parameter, and shards are cut between segments, so that the
# bits of a norm depend neither on buckets nor on shards. With 128 a shard is within 128 elements of its ideal size, and
# the float64 sums that ranks exchange are 1/64 of the bytes of float32 gradients.
SEGMENT = 128

HALF_TYPES = ("float16", "bfloat16")

# The smallest bucket is this fraction of the largest: 1.25 MiB of 10 MiB, 10 ms at 1 Gbit/s.
_TAPER = 8


@dataclass(frozen=True)
class ParamSpec:
    """Properties of a parameter that must be equal on all ranks.

    `local`: whether the parameter is never synchronised.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    local: bool = False

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @cached_property
    def arena(self) -> tuple[str, bool]:
        """Return the key of the flat array that contains the parameter. There is one array per dtype, separately for
        parameters that are synchronised and for `local` ones."""
        return self.dtype.name, self.local


@dataclass(frozen=True)
class ParamLocation:
    """Elements `start:stop` of a parameter, counted within its bucket or within a part of the bucket."""

    spec: ParamSpec
    start: int
    stop: int


@dataclass(frozen=True)
class Bucket:
    """Adjacent parameters in one flat array (an arena) that are reduced, updated and gathered together. A parameter is
    never divided among buckets.

    `offset`: index in the arena of the bucket's first element. `bounds`: offsets of the shards in the bucket, and its
    end; rank r's shard is `bounds[r]:bounds[r + 1]`. `segment_bounds`: the same offsets, counted in segments instead of
    elements.
    """

    index: int
    offset: int
    locations: tuple[ParamLocation, ...]
    bounds: tuple[int, ...]
    segment_bounds: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype:
        return self.locations[0].spec.dtype

    @property
    def local(self) -> bool:
        return self.locations[0].spec.local

    @cached_property
    def half(self) -> bool:
        return self.dtype.name in HALF_TYPES

    @property
    def arena(self) -> tuple[str, bool]:
        return self.locations[0].spec.arena

    @property
    def size(self) -> int:
        return self.locations[-1].stop

    @cached_property
    def segments(self) -> NDArray[np.intp]:
        """Return the index of the first element of each segment, a unit of norm sums, in the bucket."""
        return segment_starts(self.locations)

    def shard(self, rank: int) -> slice:
        """Return the range of the elements of the bucket that `rank` updates."""
        return slice(self.bounds[rank], self.bounds[rank + 1])


@dataclass(frozen=True)
class Layout:
    """All parameters in registration order, and all buckets in the order in which they are reduced."""

    specs: tuple[ParamSpec, ...]
    buckets: tuple[Bucket, ...]

    @cached_property
    def early(self) -> int:
        """Return the index of the second bucket that ranks share. If they share fewer than two, return that of the last
        bucket.

        Updates of buckets up to this index may begin before this rank knows that all others have ended the previous
        update.
        """
        shared = [bucket.index for bucket in self.buckets if bucket.size and not bucket.local]
        return shared[1] if len(shared) > 1 else len(self.buckets) - 1

    @cached_property
    def locations(self) -> dict[str, tuple[Bucket, ParamLocation]]:
        return {location.spec.name: (bucket, location) for bucket in self.buckets for location in bucket.locations}

    @cached_property
    def arena_sizes(self) -> dict[tuple[str, bool], int]:
        sizes: dict[tuple[str, bool], int] = {}
        for spec in self.specs:
            sizes[spec.arena] = sizes.get(spec.arena, 0) + spec.size
        return sizes


@dataclass
class _OpenBucket:
    """Numbers of bytes of a flat array while its buckets are planned: in closed buckets, in the open bucket, and not
    yet assigned."""

    done: int = 0
    held: int = 0
    left: int = 0
    members: list[ParamSpec] = field(default_factory=list)

    def add(self, spec: ParamSpec) -> None:
        self.members.append(spec)
        self.held += spec.nbytes
        self.left -= spec.nbytes

    def close(self) -> list[ParamSpec]:
        members, self.members = self.members, []
        self.done, self.held = self.done + self.held, 0
        return members


def plan_layout(specs: Sequence[ParamSpec], bucket_bytes: int, world_size: int) -> Layout:
    """Divide `specs` into buckets of whole parameters. A bucket is closed at `bucket_bytes`; the first and last are
    smaller.

    The order is the reverse of registration: a backward pass produces the gradients of the layers registered last
    first, so the first bucket is complete early in the pass. A bucket has the place of its last member in the order,
    because it is complete only then. The first buckets are small so that the network has work early, and the last ones
    so that little work remains when the backward pass ends: sizes double from `bucket_bytes` / 8, and halve again. A
    parameter that would make a bucket longer than `bucket_bytes` begins a new one, unless the bucket is still small: if
    the backward pass takes as long as the transfers, the longest bucket is the work that remains at its end.
    """
    arenas = {spec.arena: _OpenBucket() for spec in specs}
    for spec in specs:
        arenas[spec.arena].left += spec.nbytes
    closed: list[list[ParamSpec]] = []
    for spec in reversed(specs):
        bucket = arenas[spec.arena]
        if bucket.held > bucket_bytes // 4 and bucket.held + spec.nbytes > bucket_bytes:
            closed.append(bucket.close())
        bucket.add(spec)
        if bucket.held >= min(bucket_bytes, max(bucket_bytes // _TAPER, min(bucket.done, bucket.left))):
            closed.append(bucket.close())
    registered = {spec.name: index for index, spec in enumerate(specs)}
    closed.extend(bucket.members for bucket in arenas.values() if bucket.members)
    closed.sort(key=lambda members: -registered[members[-1].name])

    offsets: dict[tuple[str, bool], int] = {}
    buckets = []
    for index, members in enumerate(closed):
        arena = members[0].arena
        buckets.append(_planned_bucket(index, offsets.get(arena, 0), members, world_size))
        offsets[arena] = offsets.get(arena, 0) + buckets[-1].size
    return Layout(tuple(specs), tuple(buckets))


def _planned_bucket(index: int, offset: int, members: Sequence[ParamSpec], world_size: int) -> Bucket:
    edges = np.cumsum([0, *(spec.size for spec in members)]).tolist()
    locations = tuple(ParamLocation(spec, *edge) for spec, edge in zip(members, pairwise(edges), strict=True))
    cuts = np.append(segment_starts(locations), edges[-1])
    ideal = np.arange(world_size + 1) * edges[-1] / world_size
    above = np.searchsorted(cuts, ideal)
    below = np.maximum(above - 1, 0)
    nearest = np.where(ideal - cuts[below] < cuts[above] - ideal, below, above)
    return Bucket(index, offset, locations, tuple(cuts[nearest].tolist()), tuple(nearest.tolist()))


def segment_starts(locations: Sequence[ParamLocation]) -> NDArray[np.intp]:
    """Return the first element of each segment of `locations`: every SEGMENT elements, and at each parameter."""
    starts = [np.arange(location.start, location.stop, SEGMENT, dtype=np.intp) for location in locations]
    return np.concatenate(starts) if starts else np.empty(0, np.intp)
