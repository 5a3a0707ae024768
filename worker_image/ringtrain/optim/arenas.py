"""Host memory of the optimizer: flat arrays for weights, gradients and this rank's part of the state."""

from collections.abc import Sequence

import numpy as np

from ringtrain._core.process_groups.group import CollectiveGroup, Flat
from ringtrain.optim.kernels import OptimizerKernels, OwnedBucketPart
from ringtrain.optim.layout import Bucket, Layout
from ringtrain.optim.slots import MASTER, WEIGHTS


class ParameterArenas:
    """Flat arrays ("arenas") of all weights and of all gradients, one per dtype, and this rank's part of the state.

    A half-precision weight has a float32 copy in the state ("master"): updates far smaller than the weight would be
    lost in its 8 or 11 bits. State is float32 for half-precision and float32 weights, float64 for float64.
    """

    def __init__(
        self,
        layout: Layout,
        state_names: Sequence[str],
        owner: int | None,
        group: CollectiveGroup,
        kernels: OptimizerKernels,
    ) -> None:
        """Allocate the flat arrays. `owner`: rank whose shards this process updates; None if it updates all
        elements."""
        self._kernels = kernels
        self._weights = {key: group.allocate(size, key[0]) for key, size in layout.arena_sizes.items()}
        self._gradients = {key: group.allocate(size, key[0]) for key, size in layout.arena_sizes.items()}
        self._owner = owner
        self.state = tuple(self._allocate_state(bucket, state_names) for bucket in layout.buckets)

    def weights(self, bucket: Bucket) -> Flat:
        return self._weights[bucket.arena][bucket.offset : bucket.offset + bucket.size]

    def gradients(self, bucket: Bucket) -> Flat:
        return self._gradients[bucket.arena][bucket.offset : bucket.offset + bucket.size]

    def synced_arenas(self) -> list[Flat]:
        """Return the weight arrays that are equal on all ranks, in the same order on every rank."""
        return [arena for (_, local), arena in self._weights.items() if not local]

    def owned(self, bucket: Bucket) -> slice:
        """Return the range of elements of `bucket` that this process updates."""
        return slice(0, bucket.size) if self._owner is None or bucket.local else bucket.shard(self._owner)

    def owned_segments(self, bucket: Bucket) -> slice:
        """Return the range of segments of `bucket` that this process updates. Norms are summed by segment."""
        if self._owner is None or bucket.local:
            return slice(0, bucket.segments.size)
        return slice(*bucket.segment_bounds[self._owner : self._owner + 2])

    def part(self, bucket: Bucket) -> OwnedBucketPart:
        """Return the arrays of the elements of `bucket` that this process updates. `store` writes weights back.

        Half-precision weights that the caller has changed are first copied into their master copies.
        """
        owned, state = self.owned(bucket), self.state[bucket.index]
        gradients = self.gradients(bucket)[owned]
        if not bucket.half:
            return OwnedBucketPart(self.weights(bucket)[owned], gradients, state)
        self._kernels.follow(state[MASTER], self.weights(bucket)[owned])
        return OwnedBucketPart(state[MASTER], gradients.astype(np.float32), state)

    def store(self, bucket: Bucket, part: OwnedBucketPart) -> None:
        """Write the updated weights of `part` back to their flat array, rounded to half precision; do nothing for other
        dtypes, whose weights are updated in place."""
        if bucket.half:
            self.weights(bucket)[self.owned(bucket)] = part.weights

    def own_values(self, bucket: Bucket) -> dict[str, Flat]:
        """Return the arrays that this process updates: state, and weights in the precision of the update."""
        state = self.state[bucket.index]
        return (
            {MASTER: state[MASTER], **state}
            if bucket.half
            else {WEIGHTS: self.weights(bucket)[self.owned(bucket)], **state}
        )

    def round_master(self, bucket: Bucket) -> None:
        """Round the float32 copies of the weights that this process updates into the half-precision weights."""
        if bucket.half:
            self.weights(bucket)[self.owned(bucket)] = self.state[bucket.index][MASTER]

    def refresh_masters(self, buckets: Sequence[Bucket]) -> None:
        """Set the float32 copies of half-precision weights after other code than an update changed the weights."""
        for bucket in buckets:
            if bucket.half:
                self.state[bucket.index][MASTER][:] = self.weights(bucket)[self.owned(bucket)]

    def _allocate_state(self, bucket: Bucket, names: Sequence[str]) -> dict[str, Flat]:
        owned, kept = self.owned(bucket), (*names, MASTER) if bucket.half else tuple(names)
        dtype = np.float32 if bucket.half else bucket.dtype
        return {name: np.zeros(owned.stop - owned.start, dtype) for name in kept}
