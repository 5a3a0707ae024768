"""Buckets on the wire as one byte an element."""

from dataclasses import dataclass

import numpy as np

from ringtrain.compression import int8
from ringtrain.optim.arenas import Arenas
from ringtrain.optim.layout import Bucket, Layout
from ringtrain.optim.wire import Then, compressible
from ringtrain.process_groups.group import Flat, Group, Pending
from ringtrain.reduction.cuts import offsets


@dataclass
class _ByteFeedback:
    """Of one bucket. `lost`, `lost_change`: what rounding took from gradients and from the own shard's change.
    `before`: the own shard's weights before the update."""

    lost: Flat
    lost_change: Flat
    before: Flat


class ByteWire:
    """`Wire` of "int8": a quarter of the bytes.

    Sums of bytes would overflow: each rank's contributions go to the owners of the shards as they are, and are
    folded there in float32, in rank order.
    """

    def __init__(self, group: Group, gatherer: Group, layout: Layout, arenas: Arenas) -> None:
        self._group = group
        self._gatherer = gatherer
        self._arenas = arenas
        self._memories = {bucket.index: self._memory(bucket) for bucket in compressible(layout)}

    def carries(self, bucket: Bucket) -> bool:
        return bucket.index in self._memories

    def reduce_scatter(self, bucket: Bucket) -> Pending:
        gradients, lost = self._arenas.gradients(bucket), self._memories[bucket.index].lost
        shards = [bucket.shard(rank) for rank in range(self._group.size)]
        parts = [int8.encode(gradients[shard], lost[shard]) for shard in shards]
        own = gradients[shards[self._group.rank]]

        def fold(messages: list[Flat]) -> None:
            own[:] = int8.decode(messages[0], len(own))
            for message in messages[1:]:
                np.add(own, int8.decode(message, len(own)), out=own)
            np.divide(own, np.float32(self._group.size), out=own)

        return Then(self._group.all_to_all(parts), fold)

    def remember(self, bucket: Bucket) -> None:
        self._memories[bucket.index].before[:] = self._own_weights(bucket)

    def all_gather(self, bucket: Bucket) -> Pending:
        memory, own = self._memories[bucket.index], self._own_weights(bucket)
        np.subtract(own, memory.before, out=own)
        change = int8.encode(own, memory.lost_change)
        own[:] = memory.before
        shards = [bucket.shard(rank) for rank in range(self._group.size)]
        bounds = offsets([int8.encoded_length(shard.stop - shard.start) for shard in shards])
        encoded = np.empty(bounds[-1], np.uint8)
        encoded[bounds[self._group.rank] : bounds[self._group.rank + 1]] = change
        weights = self._arenas.weights(bucket)

        def apply(_: object) -> None:
            for rank, shard in enumerate(shards):
                message = encoded[bounds[rank] : bounds[rank + 1]]
                np.add(weights[shard], int8.decode(message, shard.stop - shard.start), out=weights[shard])

        return Then(self._gatherer.all_gather(encoded, bounds), apply)

    def lost(self, bucket: Bucket) -> Flat:
        return self._memories[bucket.index].lost

    def lost_change(self, bucket: Bucket) -> Flat:
        return self._memories[bucket.index].lost_change

    def _own_weights(self, bucket: Bucket) -> Flat:
        return self._arenas.weights(bucket)[bucket.shard(self._group.rank)]

    def _memory(self, bucket: Bucket) -> _ByteFeedback:
        own = bucket.shard(self._group.rank)
        change, before = (np.zeros(own.stop - own.start, np.float32) for _ in range(2))
        return _ByteFeedback(np.zeros(bucket.size, np.float32), change, before)
