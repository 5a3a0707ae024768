"""Buckets on the wire in fewer bytes: gradients as they are, weights as what changed, both with error feedback."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ringtrain.compression.halves import Flat, half_dtype, squeeze, stretch
from ringtrain.optim.arenas import Arenas
from ringtrain.optim.layout import Bucket, Layout
from ringtrain.process_groups.group import Group, Pending
from ringtrain.reduction.ops import Average


class Wire(Protocol):
    """Carries float32 buckets of a sharded optimizer in fewer bytes.

    All ranks, the owner of a shard included, apply the rounded change to the weights they had, so that all hold
    the same bits; what the rounding took away is part of the owner's next change.
    """

    def carries(self, bucket: Bucket) -> bool: ...

    def reduce_scatter(self, bucket: Bucket) -> Pending:
        """Average the gradients of `bucket` over ranks; the own shard is in the gradient arena after `wait`."""

    def remember(self, bucket: Bucket) -> None:
        """Note the weights of the own shard; called before they are updated."""

    def all_gather(self, bucket: Bucket) -> Pending:
        """Send what changed in the own shard; all weights are new, and the same on all ranks, after `wait`."""

    def lost(self, bucket: Bucket) -> Flat:
        """What rounding has taken from this rank's gradients of `bucket`, and the next ones will get; writable."""

    def lost_change(self, bucket: Bucket) -> Flat:
        """What rounding has taken from the last change of the own shard; writable."""


@dataclass
class _HalfFeedback:
    """Of one bucket. `half`: what is sent. `lost`, `lost_change`: what rounding took from gradients and from the
    own shard's change. `before`: the own shard's weights before the update."""

    half: Flat
    lost: Flat
    lost_change: Flat
    before: Flat = field(default_factory=lambda: np.empty(0, np.float32))


class HalfWire:
    """`Wire` of "bf16" and "fp16": half of the bytes."""

    def __init__(self, group: Group, gatherer: Group, layout: Layout, arenas: Arenas, compression: str) -> None:
        """Raises ConfigurationError for an unknown `compression`."""
        dtype = half_dtype(compression)
        self._group = group
        self._gatherer = gatherer
        self._arenas = arenas
        self._memories = {
            bucket.index: _HalfFeedback(
                np.empty(bucket.size, dtype),
                np.zeros(bucket.size, np.float32),
                np.zeros(self._shard(bucket).stop - self._shard(bucket).start, np.float32),
            )
            for bucket in compressible(layout)
        }

    def carries(self, bucket: Bucket) -> bool:
        return bucket.index in self._memories

    def reduce_scatter(self, bucket: Bucket) -> Pending:
        memory, gradients, shard = (
            self._memories[bucket.index],
            self._arenas.gradients(bucket),
            self._shard(bucket),
        )
        squeeze(gradients, memory.lost, memory.half)
        pending = self._group.reduce_scatter(memory.half, bucket.bounds, Average)
        return Then(pending, lambda _: stretch(memory.half[shard], gradients[shard]))

    def remember(self, bucket: Bucket) -> None:
        self._memories[bucket.index].before = self._arenas.weights(bucket)[self._shard(bucket)].copy()

    def all_gather(self, bucket: Bucket) -> Pending:
        memory, weights, shard = self._memories[bucket.index], self._arenas.weights(bucket), self._shard(bucket)
        np.subtract(weights[shard], memory.before, out=weights[shard])
        squeeze(weights[shard], memory.lost_change, memory.half[shard])
        weights[shard] = memory.before
        pending = self._gatherer.all_gather(memory.half, bucket.bounds)
        return Then(pending, lambda _: self._apply(weights, memory.half))

    def lost(self, bucket: Bucket) -> Flat:
        return self._memories[bucket.index].lost

    def lost_change(self, bucket: Bucket) -> Flat:
        return self._memories[bucket.index].lost_change

    def _apply(self, weights: Flat, changes: Flat) -> None:
        wide = np.empty(len(changes), np.float32)
        stretch(changes, wide)
        np.add(weights, wide, out=weights)

    def _shard(self, bucket: Bucket) -> slice:
        return slice(bucket.bounds[self._group.rank], bucket.bounds[self._group.rank + 1])


def compressible(layout: Layout) -> list[Bucket]:
    return [b for b in layout.buckets if b.dtype == np.float32 and not b.local and b.size]


@dataclass(frozen=True)
class Then:
    """A collective and what follows it on this rank. Waited for once."""

    pending: Pending
    action: Callable[[Any], None]

    def wait(self) -> None:
        self.action(self.pending.wait())
