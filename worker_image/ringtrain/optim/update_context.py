"""Values that an update works with: its shard, the transfers of buckets, replicas of shards."""

from dataclasses import dataclass, field
from typing import Protocol

from ringtrain._core.process_groups.group import CollectiveGroup, Flat, PendingCollective
from ringtrain.optim.arenas import ParameterArenas
from ringtrain.optim.arguments import OptimizerSettings
from ringtrain.optim.inbox import GradientInbox
from ringtrain.optim.kernels import OptimizerKernels
from ringtrain.optim.layout import Bucket, Layout, ParamLocation
from ringtrain.optim.mirror import KeptShard, OptimizerShardMirror, UpdateReplay
from ringtrain.optim.norms import GradientNorms
from ringtrain.optim.order import BucketOrder
from ringtrain.optim.spans import MissedGradients
from ringtrain.optim.undo import OptimizerUndo
from ringtrain.optim.wire import LOST_CHANGE, OptimizerWire


class DeviceReducer(Protocol):
    """Interface of a reducer that reduces gradients on this rank's device and sends new weights to the device.

    Either every rank has a DeviceReducer, or no rank.
    """

    def attach(self, layout: Layout, arenas: ParameterArenas) -> None:
        """Use `layout` and the flat arrays `arenas` of the optimizer. Called once, before all other methods."""

    def reduce_scatter(self, bucket: Bucket) -> PendingCollective:
        """Begin to reduce the gradients of `bucket`, and to write the sum over ranks for this rank's shard to the host
        array of gradients. For half-precision types, the result is the mean over ranks and micro-steps.

        Each element is a fold in an order that depends only on the ranks' places.
        """

    def all_gather(self, bucket: Bucket) -> PendingCollective:
        """Begin to send each rank's shard of the new weights to all devices. The host need not receive them."""


@dataclass(frozen=True)
class ShardUpdate:
    """Parts of an optimizer that an update of this rank's shard needs.

    `state_names`: names of the rules' state arrays for each element. `spans`: spans of this rank's elements of each
    bucket. `missed`: for each parameter of the shard, the number of updates without a gradient. `undo`: log that copies
    values before they change.
    """

    kernels: OptimizerKernels
    state_names: tuple[str, ...]
    spans: tuple[tuple[ParamLocation, ...], ...]
    missed: MissedGradients
    norms: GradientNorms
    undo: OptimizerUndo | None = None


@dataclass(frozen=True)
class BucketTransfers:
    """Parts of an optimizer that transfers of buckets need.

    `order`: order of buckets in an update. `wire`: compressor of some buckets. `lane`: second group of the ranks, which
    gathers while `UpdateContext.group` reduces. `devices`: reducer of gradients that are in device memory, not in the
    arena.
    """

    order: BucketOrder
    wire: OptimizerWire | None = None
    lane: CollectiveGroup | None = None
    devices: DeviceReducer | None = None


@dataclass(frozen=True)
class ShardCopies:
    """Copies of other ranks' shards on this rank.

    `mirrors`: this rank's replicas of other ranks' shards, one for each replica of a shard. `kept`: shards of leaving
    ranks, by rank.
    """

    mirrors: tuple[OptimizerShardMirror, ...] = ()
    kept: dict[int, KeptShard] = field(default_factory=dict)

    def kept_after(self, updates: int) -> list[int]:
        """Return the leaving ranks that sent this rank their shard as it was after update `updates`."""
        return sorted(rank for rank, kept in self.kept.items() if kept.updates == updates)

    def of(self, bucket: Bucket) -> list[tuple[int, dict[str, Flat]]]:
        """Return the owner and the arrays of each copied shard of `bucket` on this rank."""
        kept = [(rank, one.values[bucket.index]) for rank, one in self.kept.items() if bucket.index in one.values]
        return [*((mirror.owner, mirror.values(bucket)) for mirror in self.mirrors), *kept]

    def catch_up_until_complete(self, inbox: GradientInbox, awaited: Bucket, number: int) -> None:
        """Bring the replicas to update `number`, bucket by bucket, until the gradients of `awaited` are complete."""
        for mirror in self.mirrors:
            mirror.catch_up_until(inbox.is_complete, awaited, number)

    def exchange(self, bucket: Bucket, reduced: Flat, replay: UpdateReplay) -> list[PendingCollective]:
        """Begin to send the `reduced` gradient of this rank's shard to its replicas, like
        `OptimizerShardMirror.exchange`."""
        return [sent for mirror in self.mirrors for sent in mirror.exchange(bucket, reduced, replay)]


@dataclass(frozen=True)
class UpdateContext:
    """Parts of an optimizer that are the same in every update.

    `sharded`: whether each rank updates only its own shard.
    """

    group: CollectiveGroup
    layout: Layout
    arenas: ParameterArenas
    settings: OptimizerSettings
    sharded: bool
    shard: ShardUpdate
    transfers: BucketTransfers
    copies: ShardCopies

    def stays_here(self, bucket: Bucket) -> bool:
        """Return whether `bucket` stays on this rank, because no other rank shares it."""
        return bucket.local or bucket.size == 0 or self.group.size == 1

    def wire_of(self, bucket: Bucket) -> OptimizerWire | None:
        """Return the compressor for the transfers of `bucket`; None if `bucket` is sent uncompressed or not at all."""
        wire = self.transfers.wire
        return wire if wire is not None and wire.carries(bucket) and not self.stays_here(bucket) else None

    def slots(self, bucket: Bucket) -> dict[str, Flat]:
        """Return the arrays of `bucket` that only this rank has: state of its elements, and errors of their changes."""
        state, wire = dict(self.arenas.state[bucket.index]), self.transfers.wire
        if wire is not None and wire.carries(bucket):
            state[LOST_CHANGE] = wire.lost_change(bucket)
        return state

    def mean_scale(self, bucket: Bucket, micro_steps: int) -> float:
        """Return the factor that converts a sum over ranks and all micro-steps to the mean."""
        if bucket.half:
            return 1.0  # averaged by the inbox and by the ring
        is_mean = bucket.local or self.wire_of(bucket) is not None
        return 1.0 / (micro_steps * (1 if is_mean else self.group.size))
