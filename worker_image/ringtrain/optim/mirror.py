"""Replica of another rank's shard, on a rank in another pod, from which the shard is rebuilt if its owner is lost.

With `redundancy=2` each shard has two replicas in two pods: one `OptimizerShardMirror` each.

An update is bitwise deterministic. So the owner sends the reduced gradient of its shard, and the replica applies the
same rule. It does so one update later, when all ranks are known to have done that one: until then it has the old values
and the gradient, and therefore the shard of either update. If ranks map each other's memory, the owner writes the
gradient directly into the memory of the replica's rank. See docs/decisions/0022-shard-replica.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ringtrain import timeline
from ringtrain._core.process_groups.group import CollectiveGroup, Flat, PendingCollective
from ringtrain.errors import RingtrainError
from ringtrain.optim.arenas import ParameterArenas
from ringtrain.optim.kernels import OptimizerKernels, OwnedBucketPart
from ringtrain.optim.layout import Bucket, Layout, ParamLocation
from ringtrain.optim.slots import MASTER, WEIGHTS
from ringtrain.optim.spans import MissedGradients, StepRules, spans_of
from ringtrain.optim.wire import LOST_CHANGE, OptimizerWire

_GENERATIONS: Final = 2
_ALIGNED: Final = 64  # a cache line: two owners never write to the same line


def assign_replicas(pods: Sequence[int], copies: int = 1) -> list[tuple[int, ...]]:
    """Return `[k][owner]`: the rank that stores replica `k` of the shard of rank `owner`, in another pod if possible.

    `pods`: the pod of each rank, as any comparable value. `copies`: number of replicas of each shard, limited by the
    number of other ranks. Every rank stores `copies` replicas. With one replica, an owner and its replica share a pod
    only if that pod has more than half of the ranks; two replicas are in two other pods if no pod has more than a
    third.
    """
    order = sorted(range(len(pods)), key=lambda rank: (pods.index(pods[rank]), rank))
    pod = np.array([pods.index(pods[rank]) for rank in order])
    shifts: list[int] = []
    for _ in range(min(copies, len(pods) - 1)):
        placed = [pod, *(np.roll(pod, -shift) for shift in shifts)]
        shifts.append(
            min(
                (shift for shift in range(1, len(pods)) if shift not in shifts),
                key=lambda shift: sum(int(np.sum(np.roll(pod, -shift) == replica_ranks)) for replica_ranks in placed),
            )
        )
    place = {rank: at for at, rank in enumerate(order)}
    return [tuple(order[(place[rank] + shift) % len(order)] for rank in range(len(pods))) for shift in shifts]


@dataclass(frozen=True)
class UpdateReplay:
    """Rules and factors with which an update changed a bucket, so that a replica can repeat it.

    `scale`: factor that made the mean of the gradients. `layer_rates`: rates by parameter name, for rules with a rate
    for each parameter.
    """

    rules: StepRules
    scale: float
    layer_rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """Return the number of the update."""
        return self.rules.number


@dataclass(frozen=True)
class MirrorTools:
    """Kernels, state names and compression that a shard replica needs to replay an update."""

    state_names: tuple[str, ...]
    kernels: OptimizerKernels
    wire: OptimizerWire | None


@dataclass(frozen=True)
class KeptShard:
    """Shard that a leaving rank sent to this rank. `values`: state arrays of each bucket after `updates`.

    `missed`: for each parameter, the number of updates in which it had no gradient.
    """

    updates: int
    values: dict[int, dict[str, Flat]]
    missed: dict[str, int]


class OptimizerShardMirror:
    """Replica, on this rank, of the shard of rank `owner`. The replica of this rank's shard is on rank `replica_rank`.

    `maps`: whether the owner may write gradients into the memory of `replica_rank`, if ranks map each other's memory.
    This is possible only for one replica: compiled code writes a gradient once, before any rank has new weights.
    """

    def __init__(
        self,
        layout: Layout,
        replica_ranks: Sequence[int],
        group: CollectiveGroup,
        tools: MirrorTools,
        *,
        maps: bool = True,
    ) -> None:
        self.replica_ranks = tuple(replica_ranks)
        self.replica_rank, self.owner = replica_ranks[group.rank], self.replica_ranks.index(group.rank)
        self._tools = tools
        self._lane = group
        self.buckets = [bucket for bucket in layout.buckets if bucket.size and not bucket.local]
        self._values = {bucket.index: self._allocate(bucket) for bucket in self.buckets}
        # Two generations: an owner may write a gradient before the previous one is applied. If gradients are received
        # over the network, the second is never touched and takes no memory.
        memory = group.allocate(_GENERATIONS * sum(map(_bucket_room, self.buckets)), np.uint8)
        self._gradients = self._cut_up(memory, self.owner)
        there = group.memory_of(self.replica_rank, memory) if maps else None
        self._gradients_there = None if there is None else self._cut_up(there, group.rank)
        self._versions = dict.fromkeys(self._values, 0)  # update after which the values are
        self._replays: dict[int, UpdateReplay] = {}  # the update to apply next
        self._spans = {bucket.index: spans_of(bucket, self.shard(bucket)) for bucket in self.buckets}
        self.missed = MissedGradients()  # for the parameters of the owner's shard

    def values(self, bucket: Bucket) -> dict[str, Flat]:
        """Return the replica's arrays for `bucket`: weights in the precision of the update, and state."""
        return self._values[bucket.index]

    def all_values(self) -> list[Flat]:
        """Return all arrays of the replica."""
        return [array for values in self._values.values() for array in values.values()]

    def gradients(self, number: int) -> list[Flat]:
        """Return the arrays in which the gradients of update `number` are stored until `catch_up` applies them."""
        return list(self._gradients[self._generation(number)].values())

    @property
    def version(self) -> int:
        """Return the number of the update that the replica contains. Valid between two updates."""
        return min(self._versions.values(), default=0)

    def shard(self, bucket: Bucket) -> slice:
        """Return the range of elements of `bucket` that are in this replica."""
        return bucket.shard(self.owner)

    def room(self, bucket: Bucket, number: int) -> Flat | None:
        """Return the memory on `replica_rank` for the gradient of this rank's shard in update `number`; None if it is
        not mapped, so that `exchange` must send the gradient.

        Write to it when all ranks have reduced the bucket, and before its weights are gathered.
        """
        return None if self._gradients_there is None else self._gradients_there[number % _GENERATIONS][bucket.index]

    def catch_up_until(self, is_complete: Callable[[int], bool], awaited: Bucket, number: int) -> None:
        """Apply stored gradients to the replica, bucket by bucket, until the gradients of `awaited` are complete.

        `is_complete`: returns whether the gradients of the bucket with this index are complete. `number`: number of the
        present update; the stored gradients are those of the update before.
        """
        for bucket in self.buckets:
            if is_complete(awaited.index):
                return
            self.catch_up(bucket, number)

    def catch_up(self, bucket: Bucket, number: int) -> None:
        """Apply the stored gradient of the update before `number` to the replica. All ranks have finished that
        update."""
        replay = self._replays.get(bucket.index)
        if replay is None or replay.number >= number:
            return
        del self._replays[bucket.index]
        with timeline.span(f"replay bucket {bucket.index}", "update"):
            self._apply(bucket, replay)
        self._versions[bucket.index] = replay.number

    def exchange(self, bucket: Bucket, reduced: Flat, replay: UpdateReplay) -> list[PendingCollective]:
        """Begin to send this rank's `reduced` gradient to `replica_rank`, and to receive the gradient of `owner` for
        the next `catch_up`.

        `reduced` must not change until the returned transfers have ended. Collective. If `reduced` was written to
        `room`, nothing is sent. `replay`: factors with which the update changes the bucket.
        """
        self.catch_up(bucket, replay.number)
        self._replays[bucket.index] = replay
        if self._gradients_there is not None:
            return []
        target = self._waiting(bucket, replay)
        return [self._lane.send_receive(reduced.view(np.uint8), self.replica_rank, target.view(np.uint8), self.owner)]

    def settle(self, to: int) -> None:
        """Set the replica to its values after update `to`, the last update or the one before. Not collective."""
        for bucket in self.buckets:
            replay = self._replays.get(bucket.index)
            if replay is not None and replay.number == to:
                self.catch_up(bucket, to + 1)
            self._replays.pop(bucket.index, None)
            if self._versions[bucket.index] != to:
                raise RingtrainError(
                    f"the replica of rank {self.owner}'s shard of bucket {bucket.index} has the values of update "
                    f"{self._versions[bucket.index]}; expected update {to}"
                )

    def forget_after(self, update: int) -> None:
        """Discard the stored gradients of all updates after `update`.

        The replica can still be set to its values after `update`, or after the update before.
        """
        self._replays = {index: one for index, one in self._replays.items() if one.number <= update}

    def take_weights(self, arenas: ParameterArenas, masters: bool = True) -> None:
        """Copy the weights, which all ranks have, into the replica.

        `masters`: whether to set the master copy of a half-precision weight, too, if the rounded master differs from
        the weight.
        """
        for bucket in self.buckets:
            weights = arenas.weights(bucket)[self.shard(bucket)]
            if not bucket.half:
                self.values(bucket)[WEIGHTS][:] = weights
            elif masters:
                self._tools.kernels.follow(self.values(bucket)[MASTER], weights)

    def begin_at(self, updates: int) -> None:
        """Record that the replica now has the values after update `updates`."""
        self._versions = dict.fromkeys(self._versions, updates)
        self._replays.clear()

    def _apply(self, bucket: Bucket, replay: UpdateReplay) -> None:
        values, kernels, wire = self.values(bucket), self._tools.kernels, self._tools.wire
        weights = values[MASTER if bucket.half else WEIGHTS]
        gradients = self._waiting(bucket, replay)
        part = OwnedBucketPart(weights, gradients.astype(np.float32) if bucket.half else gradients, values)
        before = weights.copy() if LOST_CHANGE in values else weights
        present = replay.rules.apply(part, self._spans[bucket.index], self.missed, replay.scale, kernels)
        descend_weights(part, present, replay.layer_rates, kernels)
        if wire is not None and LOST_CHANGE in values:
            wire.round_change(before, weights, values[LOST_CHANGE])

    def _waiting(self, bucket: Bucket, replay: UpdateReplay) -> Flat:
        return self._gradients[self._generation(replay.number)][bucket.index]

    def _generation(self, number: int) -> int:
        return 0 if self._gradients_there is None else number % _GENERATIONS

    def _cut_up(self, memory: Flat, owner: int) -> list[dict[int, Flat]]:
        """Divide `memory` of a rank into arrays for the gradients of `owner`'s shard, by generation and bucket."""
        generations: list[dict[int, Flat]] = []
        start = 0
        for _ in range(_GENERATIONS):
            generations.append({})
            for bucket in self.buckets:
                end = start + _owned_length(bucket, owner) * bucket.dtype.itemsize
                generations[-1][bucket.index] = memory[start:end].view(bucket.dtype)
                start += _bucket_room(bucket)
        return generations

    def _allocate(self, bucket: Bucket) -> dict[str, Flat]:
        names = [MASTER if bucket.half else WEIGHTS, *self._tools.state_names]
        if self._tools.wire is not None and self._tools.wire.carries(bucket):
            names.append(LOST_CHANGE)
        dtype = np.float32 if bucket.half else bucket.dtype
        return {name: np.zeros(_owned_length(bucket, self.owner), dtype) for name in names}


def _owned_length(bucket: Bucket, owner: int) -> int:
    return bucket.bounds[owner + 1] - bucket.bounds[owner]


def _bucket_room(bucket: Bucket) -> int:
    """Return the bytes to reserve for a bucket's largest shard, so that offsets are equal on all ranks."""
    longest = max(_owned_length(bucket, owner) for owner in range(len(bucket.bounds) - 1))
    return -(-longest * bucket.dtype.itemsize // _ALIGNED) * _ALIGNED


def descend_weights(
    part: OwnedBucketPart, spans: Sequence[ParamLocation], rates: Mapping[str, float], kernels: OptimizerKernels
) -> None:
    """Subtract rate * direction from the weights of each parameter in `rates`. `part.gradients`: directions."""
    for span in spans:
        if span.spec.name in rates:
            cut = slice(span.start, span.stop)
            kernels.descend(part.weights[cut], part.gradients[cut], rates[span.spec.name])
