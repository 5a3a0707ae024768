"""Norms that have the same bits sharded or not, whatever the buckets.

Squares are summed in float64 per segment of a parameter (layout.SEGMENT) by the rank that owns the segment; the
sums of all segments are gathered, and every rank adds them in the same order. No element's square takes part in a
sum whose grouping depends on who owns it.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from ringtrain.optim.kernels import Floats
from ringtrain.optim.layout import SEGMENT, Bucket
from ringtrain.process_groups.group import Group

Sums = NDArray[np.float64]


def exchange(group: Group, own: Sequence[Sums], buckets: Sequence[Bucket]) -> list[Sums]:
    """Return the sums of all segments of `buckets[i]`, of which `own[i]` are this rank's. One collective."""
    size, rank = group.size, group.rank
    counts = [[bucket.segment_bounds[r + 1] - bucket.segment_bounds[r] for bucket in buckets] for r in range(size)]
    bounds = [0, *accumulate(sum(row) for row in counts)]
    buffer = np.empty(bounds[-1], np.float64)
    buffer[bounds[rank] : bounds[rank + 1]] = np.concatenate(own)
    group.all_gather(buffer, bounds).wait()

    whole = [np.empty(bucket.segments.size, np.float64) for bucket in buckets]
    begin = 0
    for r in range(size):
        for sums, bucket, count in zip(whole, buckets, counts[r], strict=True):
            sums[bucket.segment_bounds[r] : bucket.segment_bounds[r + 1]] = buffer[begin : begin + count]
            begin += count
    return whole


def square_sums(values: Floats, starts: NDArray[np.intp]) -> Sums:
    """Return the sum of squares of every segment (`starts`: their first elements), added in numpy's order."""
    sums = np.empty(starts.size, np.float64)
    per_block = 512  # segments have at most 128 elements: 64 Ki in all
    for first in range(0, starts.size, per_block):
        local = starts[first : first + per_block]
        after = first + per_block
        stop = int(starts[after]) if after < starts.size else values.size
        wide = values[int(local[0]) : stop].astype(np.float64)
        with np.errstate(over="ignore"):  # an infinite norm is reported by who asked for it
            np.multiply(wide, wide, out=wide)
            sums[first:after] = np.add.reduceat(wide, local - local[0])
    return sums


def squares_by_parameter(bucket: Bucket, sums: Sums) -> list[float]:
    """Return the sum of squares of every parameter of `bucket`, from the sums of its segments."""
    edges = [0, *accumulate(-(-location.spec.size // SEGMENT) for location in bucket.locations)]
    return [math.fsum(sums[first:stop]) for first, stop in pairwise(edges)]
