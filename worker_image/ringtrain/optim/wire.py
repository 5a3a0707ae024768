"""Compressed transfers of buckets (gradients and weight changes), with error feedback."""

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ringtrain._core.process_groups.group import CollectiveGroup, Flat, PendingCollective
from ringtrain._core.reduction.cuts import Bounds, length_offsets
from ringtrain._core.reduction.ops import Average
from ringtrain.compression import int8
from ringtrain.compression.halves import half_dtype, squeeze, stretch_half
from ringtrain.optim.arenas import ParameterArenas
from ringtrain.optim.layout import Bucket, Layout
from ringtrain.optim.spans import ABSENT, parameter_beginnings, spans_of

LOST, LOST_CHANGE = "lost", "lost_change"


@dataclass(frozen=True)
class _ErrorFeedback:
    """Compression errors of one bucket, which are added to the next values that are compressed.

    `lost`, `lost_change`: rounding errors of gradients and of the own shard's change. `before`: the own shard's weights
    before the update.
    """

    lost: Flat
    lost_change: Flat
    before: Flat


class OptimizerWire(ABC):
    """Base class of compressed transfers of the float32 buckets of a sharded optimizer.

    All ranks, including the owner of a shard, apply the rounded change to their old weights, so that all have bitwise
    equal weights. The rounding error is part of the owner's next change.
    """

    def __init__(
        self, group: CollectiveGroup, gatherer: CollectiveGroup, layout: Layout, arenas: ParameterArenas
    ) -> None:
        self._group = group
        self._gatherer = gatherer
        self._arenas = arenas
        self._beginnings = parameter_beginnings(layout)
        self._carried = [b for b in layout.buckets if b.dtype == np.float32 and not b.local and b.size]
        self._feedback: dict[int, _ErrorFeedback] = {}
        for bucket in self._carried:
            own = bucket.shard(group.rank)
            change, before = (np.zeros(own.stop - own.start, np.float32) for _ in range(2))
            self._feedback[bucket.index] = _ErrorFeedback(np.zeros(bucket.size, np.float32), change, before)

    def carries(self, bucket: Bucket) -> bool:
        return bucket.index in self._feedback

    @abstractmethod
    def reduce_scatter(self, bucket: Bucket, absent: Collection[str]) -> PendingCollective:
        """Begin to average the gradients of `bucket` over ranks. After `wait`, the gradient array on the host has this
        rank's part.

        `absent`: the parameters of which this rank has no gradient. Their error feedback does not change.
        """

    def remember(self, bucket: Bucket) -> None:
        """Store the weights of this rank's shard before they are updated, so that `all_gather` can send the change."""
        self._feedback[bucket.index].before[:] = self._own_weights(bucket)

    def all_gather(self, bucket: Bucket) -> PendingCollective:
        """Begin to send the weight changes of this rank's shard. After `wait`, all weights are new and equal on all
        ranks."""
        feedback, own = self._feedback[bucket.index], self._own_weights(bucket)
        np.subtract(own, feedback.before, out=own)
        encoded, bounds = self._encode_change(bucket, own, feedback.lost_change)
        own[:] = feedback.before
        weights = self._arenas.weights(bucket)

        def apply(_: object) -> None:
            for rank, (start, end) in enumerate(pairwise(bounds)):
                shard = weights[bucket.shard(rank)]
                np.add(shard, self._decode(encoded[start:end], len(shard)), out=shard)

        return FollowedCollective(self._gatherer.all_gather(encoded, bounds), apply)

    def lost(self, bucket: Bucket) -> Flat:
        """Return the compression errors of this rank's gradients, which are added to its next gradients; writable."""
        return self._feedback[bucket.index].lost

    def lost_change(self, bucket: Bucket) -> Flat:
        """Return the compression errors of the last weight change of this rank's shard; writable."""
        return self._feedback[bucket.index].lost_change

    def round_change(self, before: Flat, weights: Flat, lost: Flat) -> None:
        """Round the change from `before` to `weights` like the owner of the shard, which sends the change compressed.

        Sets `weights` to the values that all ranks get, and `lost` to the rounding error.
        """
        message = self._encode(weights - before, lost)
        np.add(before, self._decode(message, len(before)), out=weights)

    @contextlib.contextmanager
    def _owed_on(self, bucket: Bucket, absent: Collection[str]) -> Iterator[list[slice]]:
        """Set the compression errors of the parameters `absent` to 0 within this context, and restore them afterwards.

        Yields the slices of these parameters in the bucket.
        """
        lost = self.lost(bucket)
        places = [slice(at.start, at.stop) for at in bucket.locations if at.spec.name in absent]
        owed = [lost[place].copy() for place in places]
        for place in places:
            lost[place] = 0
        yield places
        for place, values in zip(places, owed, strict=True):
            lost[place] = values

    @abstractmethod
    def _encode(self, change: Flat, lost: Flat) -> Flat:
        """Return `change` + `lost` in compressed form, and write the rounding error to `lost`."""

    @abstractmethod
    def _encode_change(self, bucket: Bucket, change: Flat, lost: Flat) -> tuple[Flat, Bounds]:
        """Return a buffer that has room for the messages of all ranks, and the offsets of these messages in it.

        Only this rank's message is filled: `change` + `lost`, compressed. The rounding error is written to `lost`.
        """

    @abstractmethod
    def _decode(self, message: Flat, length: int) -> Flat:
        """Return the `length` float32 values that one rank's compressed `message` contains."""

    def _own_weights(self, bucket: Bucket) -> Flat:
        return self._arenas.weights(bucket)[bucket.shard(self._group.rank)]


class HalfOptimizerWire(OptimizerWire):
    """Compressed transfers in "bf16" and "fp16", with half of the bytes."""

    def __init__(
        self,
        group: CollectiveGroup,
        gatherer: CollectiveGroup,
        layout: Layout,
        arenas: ParameterArenas,
        compression: str,
    ) -> None:
        """Allocate the half-precision buffers. Raises ConfigurationError for an unknown `compression`."""
        super().__init__(group, gatherer, layout, arenas)
        self._dtype, sizes = half_dtype(compression), [bucket.size for bucket in self._carried]
        memory, edges = group.allocate(sum(sizes), self._dtype), length_offsets(sizes)
        cuts = itertools.starmap(slice, pairwise(edges))
        self._halves = {bucket.index: memory[cut] for bucket, cut in zip(self._carried, cuts, strict=True)}

    def reduce_scatter(self, bucket: Bucket, absent: Collection[str]) -> PendingCollective:
        half, gradients = self._halves[bucket.index], self._arenas.gradients(bucket)
        shard = bucket.shard(self._group.rank)
        with self._owed_on(bucket, absent) as places:
            squeeze(gradients, self.lost(bucket), half)
        for place in places:
            half[place] = ABSENT
        for at in bucket.locations:
            if at.spec.name not in absent:
                begins = self._beginnings[at.spec.name]
                half[[at.start + begin for begin in begins if half[at.start + begin] == 0]] = 0.0  # not -0
        pending = self._group.reduce_scatter(half, bucket.bounds, Average)
        return FollowedCollective(pending, lambda _: stretch_half(half[shard], gradients[shard]))

    def _encode(self, change: Flat, lost: Flat) -> Flat:
        half = np.empty(len(change), self._dtype)
        squeeze(change, lost, half)
        return half

    def _encode_change(self, bucket: Bucket, change: Flat, lost: Flat) -> tuple[Flat, Bounds]:
        half = self._halves[bucket.index]
        squeeze(change, lost, half[bucket.shard(self._group.rank)])
        return half, bucket.bounds

    def _decode(self, message: Flat, length: int) -> Flat:
        wide = np.empty(length, np.float32)
        stretch_half(message, wide)
        return wide


class ByteOptimizerWire(OptimizerWire):
    """Compressed transfers in "int8", with a quarter of the bytes.

    Sums of bytes would overflow, so each rank's contributions are sent to the owners of the shards, which fold them in
    float32, in rank order.
    """

    def reduce_scatter(self, bucket: Bucket, absent: Collection[str]) -> PendingCollective:
        gradients, lost = self._arenas.gradients(bucket), self.lost(bucket)
        shards = [bucket.shard(rank) for rank in range(self._group.size)]
        with self._owed_on(bucket, absent):
            values = [int8.encode(gradients[shard], lost[shard]) for shard in shards]
        here = [[span.spec.name not in absent for span in spans_of(bucket, shard)] for shard in shards]
        parts = [np.concatenate([part, np.array(at, np.uint8)]) for part, at in zip(values, here, strict=True)]
        shard = shards[self._group.rank]
        own, spans = gradients[shard], spans_of(bucket, shard)
        end = int8.int8_encoded_length(len(own))

        def fold(messages: list[Flat]) -> None:
            own[:] = int8.decode_int8(messages[0][:end], len(own))
            for message in messages[1:]:
                np.add(own, int8.decode_int8(message[:end], len(own)), out=own)
            np.divide(own, np.float32(self._group.size), out=own)
            present = np.logical_or.reduce([message[end:] for message in messages])
            for span, is_there in zip(spans, present, strict=True):
                if not is_there:
                    own[span.start : span.stop] = ABSENT
                elif own[span.start] == 0:
                    own[span.start] = 0.0  # not -0

        return FollowedCollective(self._group.all_to_all(parts), fold)

    def _encode(self, change: Flat, lost: Flat) -> Flat:
        return int8.encode(change, lost)

    def _encode_change(self, bucket: Bucket, change: Flat, lost: Flat) -> tuple[Flat, Bounds]:
        bounds = length_offsets([int8.int8_encoded_length(end - start) for start, end in pairwise(bucket.bounds)])
        encoded = np.empty(bounds[-1], np.uint8)
        encoded[bounds[self._group.rank] : bounds[self._group.rank + 1]] = int8.encode(change, lost)
        return encoded, bounds

    def _decode(self, message: Flat, length: int) -> Flat:
        return int8.decode_int8(message, length)


@dataclass(frozen=True)
class FollowedCollective:
    """Collective followed by a function that runs on this rank. Call `wait` once."""

    pending: PendingCollective
    action: Callable[[Any], None]

    def wait(self) -> None:
        self.action(self.pending.wait())
