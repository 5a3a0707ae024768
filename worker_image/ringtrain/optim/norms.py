"""Gradient and weight norms that are bitwise equal with and without shards, for any size of buckets.

The rank that owns a segment of a parameter (layout.SEGMENT) sums its squares in float64. The sums of all segments are
gathered, and every rank adds them in the same order. No square is part of a sum whose grouping depends on its owner.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from ringtrain._core.process_groups.group import CollectiveGroup
from ringtrain.optim.arenas import ParameterArenas
from ringtrain.optim.kernels import Floats, OptimizerKernels, Sums
from ringtrain.optim.layout import SEGMENT, Bucket, Layout


class GradientNorms:
    """Sums of squares of gradient segments: of this rank's segments, and gathered from all ranks."""

    def __init__(
        self,
        groups: tuple[CollectiveGroup, CollectiveGroup],
        layout: Layout,
        arenas: ParameterArenas,
        kernels: OptimizerKernels,
    ) -> None:
        """Allocate the buffer. `groups`: the group that allocates the flat arrays, and the group for gathering.
        Collective."""
        group, self._group = groups
        self._arenas = arenas
        self._kernels = kernels
        segments = [bucket.segments.size for bucket in layout.buckets if not bucket.local]
        # Largest gathered amount: one sum for all buckets, or two for one bucket.
        self._room = group.allocate(max(sum(segments), 2 * max(segments, default=0)), np.float64)

    def of_owned(self, bucket: Bucket, values: Floats) -> Sums:
        """Return the sums of squares of this rank's segments of `bucket`, whose elements are `values`."""
        owned, segments = self._arenas.owned(bucket), self._arenas.owned_segments(bucket)
        edges = np.append(bucket.segments[segments], owned.stop) - owned.start
        return self._kernels.square_sums(values, edges)

    def gathered(self, own: Sequence[Sums], buckets: Sequence[Bucket]) -> list[Sums]:
        """Return the sums of squares of all segments of `buckets`, from all ranks. `own`: sums of this rank."""
        size, rank = self._group.size, self._group.rank
        counts = [[bucket.segment_bounds[r + 1] - bucket.segment_bounds[r] for bucket in buckets] for r in range(size)]
        bounds = [0, *accumulate(sum(row) for row in counts)]
        buffer = self._room[: bounds[-1]]
        np.concatenate(own, out=buffer[bounds[rank] : bounds[rank + 1]])
        self._group.all_gather(buffer, bounds).wait()

        whole = [np.empty(bucket.segments.size, np.float64) for bucket in buckets]
        begin = 0
        for r in range(size):
            for sums, bucket, count in zip(whole, buckets, counts[r], strict=True):
                sums[bucket.segment_bounds[r] : bucket.segment_bounds[r + 1]] = buffer[begin : begin + count]
                begin += count
        return whole


def squares_by_parameter(bucket: Bucket, sums: Sums) -> list[float]:
    """Return the sum of squares of each parameter of `bucket`. `sums`: sums of its segments.

    numpy adds them in an order that depends only on their number.
    """
    edges = [0, *accumulate(-(-location.spec.size // SEGMENT) for location in bucket.locations)]
    with np.errstate(over="ignore"):  # the caller reports an infinite norm
        return [float(np.add.reduce(sums[first:stop])) for first, stop in pairwise(edges)]
