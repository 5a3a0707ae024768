"""Parts of an optimizer that depend on the ranks of a world, and are rebuilt when the world changes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from ringtrain._core.process_groups.context import current_or_none, joins_survivors
from ringtrain._core.process_groups.group import CollectiveGroup, Flat
from ringtrain.compression import HALVES, INT8
from ringtrain.errors import ConfigurationError
from ringtrain.optim.arenas import ParameterArenas
from ringtrain.optim.arguments import OptimizerSettings, comparable_text
from ringtrain.optim.compiled import best_kernels
from ringtrain.optim.fused import can_fuse, shared_buckets
from ringtrain.optim.inbox import GradientInbox
from ringtrain.optim.layout import Layout, ParamSpec, plan_layout
from ringtrain.optim.memory_check import MemoryCheck
from ringtrain.optim.mirror import MirrorTools, OptimizerShardMirror, assign_replicas
from ringtrain.optim.norms import GradientNorms
from ringtrain.optim.order import BucketOrder
from ringtrain.optim.replica_check import WeightReplicaCheck
from ringtrain.optim.rules import Rule
from ringtrain.optim.spans import MissedGradients, NativeParameterSpans, spans_of, updates_by_parameter
from ringtrain.optim.state import check_same_model
from ringtrain.optim.undo import OptimizerUndo, UpdateHistory
from ringtrain.optim.update_context import BucketTransfers, DeviceReducer, ShardCopies, ShardUpdate, UpdateContext
from ringtrain.optim.wire import LOST, LOST_CHANGE, ByteOptimizerWire, HalfOptimizerWire, OptimizerWire


@dataclass(frozen=True)
class OptimizedModel:
    """Part of an optimizer that is the same in every world: parameters in order, rules, settings.

    `rules`: the initial rules, one for each group of parameters. `group_of`: the index of each parameter's group, by
    name. `elastic`: whether updates can be undone, and the state survives the loss of as many ranks as `redundancy`.
    """

    specs: tuple[ParamSpec, ...]
    rules: tuple[Rule, ...]
    group_of: Mapping[str, int]
    settings: OptimizerSettings
    bucket_bytes: int
    sharded: bool
    compression: str | None
    elastic: bool
    redundancy: int

    def layout(self, size: int) -> Layout:
        """Return the layout of the parameters in a world of `size` ranks."""
        return plan_layout(self.specs, self.bucket_bytes, size)

    def compared(self) -> dict[str, str]:
        """Return the settings, in addition to the parameters, that must be equal on all ranks."""
        settings = self.settings
        compared = {
            "bucket_bytes": self.bucket_bytes, "sharded": self.sharded,
            "accumulate": settings.accumulate, "compression": self.compression,
            "clip_norm": settings.clip_norm, "schedule": settings.schedule, "elastic": self.elastic,
            "redundancy": self.redundancy, "update_during_backward": settings.update_during_backward,
        }  # fmt: skip
        named = {name: comparable_text(value) for name, value in compared.items()}
        if len(self.rules) == 1:
            return {"rule": comparable_text(self.rules[0])} | named
        groups = {f"rule of group {index}": comparable_text(rule) for index, rule in enumerate(self.rules)}
        return groups | {"groups": repr([self.group_of[spec.name] for spec in self.specs])} | named

    @property
    def state_names(self) -> tuple[str, ...]:
        """Return the names of the state arrays that any of the rules needs."""
        return tuple(dict.fromkeys(name for rule in self.rules for name in rule.state_names))

    @property
    def rule_name(self) -> str:
        """Return the name of the update rule, which is saved with the state."""
        return getattr(self.rules[0], "name", type(self.rules[0]).__name__)


@dataclass(frozen=True)
class OptimizerCut:
    """All parts of an optimizer that depend on the ranks of the world.

    `fused`: for each bucket, the spans that compiled code updates in one pass; None if compiled code cannot update
    them. `views`: the weights by name; every rank has all elements. `check`: compares replicas of shards. `replicas`:
    compares the weights of all ranks.
    """

    context: UpdateContext
    inbox: GradientInbox
    fused: dict[int, NativeParameterSpans] | None
    views: dict[str, Flat]
    check: MemoryCheck | None
    replicas: WeightReplicaCheck | None

    def begin_at(self, updates: int, missed: Mapping[str, int]) -> None:
        """Record that weights and state now have the values after update number `updates`, which came from elsewhere.

        Updates before that number can no longer be undone. `missed`: for each parameter, the number of updates in which
        it had no gradient.
        """
        if self.context.shard.undo is not None:
            self.context.shard.undo.forget()
        self.settle_at(updates, missed)

    def settle_at(self, updates: int, missed: Mapping[str, int]) -> None:
        """Record that other code changed the weights in place after update number `updates`.

        Updates before that number can no longer be undone. `missed`: for each parameter, the number of updates in which
        it had no gradient.
        """
        self.context.shard.missed.counts = dict(missed)
        if self.context.shard.undo is not None:
            self.context.shard.undo.settle_at(updates)
        for mirror in self.context.copies.mirrors:
            mirror.begin_at(updates)
            mirror.missed.counts = dict(missed)
        if self.check is not None:
            self.check.begin()
        if self.replicas is not None:
            self.replicas.begin()

    def accumulating(self, passes: int) -> "OptimizerCut":
        """Return a copy of this object with `passes` micro-steps per update, from the next update on."""
        settings = replace(self.context.settings, accumulate=passes)
        inbox = GradientInbox(self.context.layout, self.context.arenas, self.context.group.rank, settings)
        return replace(self, context=replace(self.context, settings=settings), inbox=inbox)


def make_cut(model: OptimizedModel, group: CollectiveGroup, devices: DeviceReducer | None = None) -> OptimizerCut:
    """Return an optimizer's parts with new arrays for this rank of `group`: weights and state are zeros.
    Collective.

    Raises MismatchError unless all ranks have the same model.
    """
    layout = model.layout(group.size)
    check_same_model(group, layout.specs, model.compared())
    kernels = best_kernels()
    arenas = ParameterArenas(layout, model.state_names, group.rank if model.sharded else None, group, kernels)
    if devices is not None:
        devices.attach(layout, arenas)
    # Devices need one order of collectives.
    lane = group.parallel_group() if group.size > 1 and devices is None else None
    wire = None
    if model.compression is not None:
        wire = _optimizer_wire((group, lane or group), layout, arenas, model.compression)
    undo = _optimizer_undo(layout, arenas, wire) if model.elastic else None
    mirrors = _shard_mirrors(model, layout, (group, lane or group), MirrorTools(model.state_names, kernels, wire))
    shard = ShardUpdate(
        kernels,
        model.state_names,
        tuple(spans_of(bucket, arenas.owned(bucket)) for bucket in layout.buckets),
        MissedGradients(),
        GradientNorms((group, lane or group), layout, arenas, kernels),
        undo,
    )
    transfers = BucketTransfers(BucketOrder(layout, group), wire, lane, devices)
    context = UpdateContext(
        group, layout, arenas, model.settings, model.sharded, shard, transfers, ShardCopies(mirrors)
    )
    inbox = GradientInbox(layout, arenas, group.rank, model.settings)
    check = MemoryCheck(context) if mirrors else None
    replicas = None
    if group.size > 1 and devices is None:
        replicas = WeightReplicaCheck(context, model.sharded or not any(map(updates_by_parameter, model.rules)))
    return OptimizerCut(context, inbox, _fused_rules(context, model), _arena_views(layout, arenas), check, replicas)


def _fused_rules(context: UpdateContext, model: OptimizedModel) -> dict[int, NativeParameterSpans] | None:
    if not model.settings.update_during_backward or not can_fuse(context, model.rules):
        return None
    return {
        bucket.index: NativeParameterSpans(context.shard.spans[bucket.index], model.group_of)
        for bucket in shared_buckets(context)
    }


def _arena_views(layout: Layout, arenas: ParameterArenas) -> dict[str, Flat]:
    views = {}
    for spec in layout.specs:
        bucket, location = layout.locations[spec.name]
        views[spec.name] = arenas.weights(bucket)[location.start : location.stop].reshape(spec.shape)
    return views


def _optimizer_wire(
    groups: tuple[CollectiveGroup, CollectiveGroup], layout: Layout, arenas: ParameterArenas, compression: str
) -> OptimizerWire:
    """Return an object that compresses transfers by `compression`. Raises ConfigurationError if it is unknown."""
    if compression == INT8:
        return ByteOptimizerWire(*groups, layout, arenas)
    if compression not in HALVES:
        allowed = ", ".join([*HALVES, INT8])
        raise ConfigurationError(f'compression is "{compression}"; expected one of {allowed}')
    return HalfOptimizerWire(*groups, layout, arenas, compression)


def _shard_mirrors(
    model: OptimizedModel, layout: Layout, groups: tuple[CollectiveGroup, CollectiveGroup], tools: MirrorTools
) -> tuple[OptimizerShardMirror, ...]:
    """Return this rank's replicas of other ranks' shards; none if shards are not replicated.

    Collective.
    """
    group, lane = groups
    if not model.elastic or not model.sharded or group.size == 1:
        return ()
    context = current_or_none()
    pod = group.rank if context is None else context.config.pod
    copies = assign_replicas(group.allgather_object(pod, "optimizer pods"), model.redundancy)
    return tuple(
        OptimizerShardMirror(layout, replica_ranks, lane, tools, maps=copy == 0)
        for copy, replica_ranks in enumerate(copies)
    )


def _optimizer_undo(layout: Layout, arenas: ParameterArenas, wire: OptimizerWire | None) -> OptimizerUndo:
    """Return an object that can undo updates, with memory allocated for it.

    For buckets up to `layout.early` it stores two copies, because they may be changed before the previous update has
    ended on all ranks. For each other bucket it stores one copy. With clipping, the reductions of two buckets begin
    before the result of the first is awaited.
    """
    generations = {bucket.index: 2 if bucket.index <= layout.early else 1 for bucket in layout.buckets}
    own, lost = [], {}
    for bucket in layout.buckets:
        live = arenas.own_values(bucket)
        if wire is not None and wire.carries(bucket):
            live[LOST_CHANGE] = wire.lost_change(bucket)
            lost[bucket.index] = UpdateHistory({LOST: wire.lost(bucket)}, generations[bucket.index])
        own.append(UpdateHistory(live, generations[bucket.index]))
    return OptimizerUndo(own, lost)


def first_optimizer_group(elastic: bool, open_group: Callable[[], CollectiveGroup]) -> CollectiveGroup:
    """Return the first group of an optimizer: `open_group()`, or a placeholder if this rank joins a running training.

    `elastic`: whether the optimizer can get its state from other ranks. If not, and this rank joins, raises
    ConfigurationError.
    """
    if not joins_survivors():
        return open_group()
    if not elastic:
        raise ConfigurationError(
            "this rank joins a running training, and a HostOptimizer receives its state only "
            "with elastic=True; pass elastic=True on all ranks"
        )
    return UnjoinedOptimizerGroup()


class UnjoinedOptimizerGroup:
    """Placeholder group of a rank that is in no world yet: it has one rank and refuses most collectives."""

    rank = 0
    size = 1

    def allocate(self, length: int, dtype: Any) -> Flat:
        return np.zeros(length, dtype)

    def allgather_object(self, value: Any, what: str) -> list[Any]:
        return [value]

    def broadcast_object(self, value: Any, what: str) -> Any:
        return value

    def parallel_group(self) -> CollectiveGroup | None:
        return None

    def memory_of(self, rank: int, buffer: Flat) -> Flat | None:
        return None

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        return False

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ConfigurationError("this optimizer has not joined a world yet; call reform() first")

    gather_objects = all_reduce = reduce_scatter = all_gather = all_to_all = send_receive = _refuse
    update = finish_updates = broadcast = _refuse
