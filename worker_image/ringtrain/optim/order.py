"""Order in which the buckets of an update are reduced.

During the backward pass it is the order of completion. Among buckets that wait, the one that the next forward pass
needs first goes first: the weights of the others arrive while it computes (Peng et al. 2019, ByteScheduler; here with
whole buckets). All ranks must use one order, so it changes only in a few updates, computed from the measurements of all
ranks, and a bucket precedes others only if it was always complete by then on every rank.
See docs/decisions/0048-front-layers-first.md.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.process_groups.group import CollectiveGroup
from ringtrain._core.reduction.ops import Max
from ringtrain.optim.layout import Bucket, Layout

_EARLY: Final = (4, 16)
_EVERY: Final = 64

Seconds = NDArray[np.float64]


class BucketOrder:
    """Order of the buckets in the next update, the same on all ranks.

    `overlaps`: whether this rank's next forward pass begins before all weights have arrived.
    """

    def __init__(self, layout: Layout, group: CollectiveGroup, clock: Callable[[], float] = time.perf_counter) -> None:
        self.buckets = layout.buckets
        self.overlaps = False
        self._natural = layout.buckets
        self._fixed = layout.early + 1
        self._group = group
        self._clock = clock
        self._updates = 0
        self._first_s: float | None = None
        self._before_s = 0.0
        self._forget()

    def begin(self) -> None:
        """Record the beginning of an update."""
        self._updates += 1
        self._first_s = None

    def reduced(self, bucket: Bucket, complete_s: float) -> None:
        """Record that the next bucket in the order was reduced. `complete_s`: time when its gradients were complete."""
        now = self._clock()
        if self._first_s is None:
            # The first bucket is reduced on all ranks at about the same time: the only common reference of their
            # clocks.
            if bucket.size and not bucket.local:
                self._first_s = self._before_s = now
            return
        if self._updates > 1:  # the first update allocates pages
            index, took_s = bucket.index, now - max(self._before_s, complete_s)
            self._ready[index] = max(self._ready[index], complete_s - self._first_s)
            self._took[index] = min(self._took[index], took_s)
        self._before_s = now

    def end(self, number: int) -> None:
        """End update `number`. After some updates, compute a new order from measured times.

        Collective; raises the errors of an allreduce.
        """
        if self._group.size == 1 or not (number in _EARLY or number % _EVERY == 0):
            return
        # A rank that has not measured all buckets, or does not overlap, contributes an infinite number.
        seen = np.where(np.isfinite(self._took), self._ready, np.inf)
        latest = np.concatenate([seen, -self._took, [0.0 if self.overlaps else np.inf]])
        self._group.all_reduce(latest, Max).wait()
        self._forget()
        self.buckets = self._natural
        if np.isfinite(latest).all():
            ready, took = np.split(latest[:-1], 2)
            self.buckets = tuple(self._natural[index] for index in front_first(ready, -took, self._fixed))

    def _forget(self) -> None:
        self._ready: Seconds = np.full(len(self._natural), -np.inf)
        self._took: Seconds = np.full(len(self._natural), np.inf)
        self._ready[: self._fixed] = self._took[: self._fixed] = 0.0


def front_first(ready: Seconds, took: Seconds, fixed: int) -> Sequence[int]:
    """Return an order of bucket indices: first `fixed` buckets, then always the highest index among completed buckets,
    because the front layers are in the last buckets.

    `ready`: seconds from the reduction of the first bucket until each bucket is complete. `took`: seconds that the
    reduction of each bucket takes.
    """
    order = list(range(min(fixed, len(ready))))
    left = set(range(len(ready))) - set(order)
    now = 0.0
    for index in order[1:]:
        now = max(now, ready[index]) + took[index]
    while left:
        now = max(now, min(ready[index] for index in left))
        order.append(max(index for index in left if ready[index] <= now))
        left.remove(order[-1])
        now += took[order[-1]]
    return order
