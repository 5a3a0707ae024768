"""Sums of gradients over the devices of a node, so that hosts transfer each element once per node.

Each device of a node has a share of every bucket: the shards of the ranks with its index in their nodes. It sums the
share over the node's devices, in rank order, and transfers the sum to host memory, where ranks with equal index reduce
it between the nodes. New weights take the opposite way. See docs/decisions/0043-node-sums.md.
"""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch

from ringtrain import ProcessSet, Sum
from ringtrain.adapter import Array, current_world
from ringtrain.adapter.devices import (
    ABSENT,
    Bucket,
    Layout,
    ParameterArenas,
    PendingCollective,
    ProcessGroup,
    number_of,
    parameter_beginnings,
)
from ringtrain.errors import ConfigurationError, RingtrainError
from ringtrain_torch.bridge import to_tensor
from ringtrain_torch.device_groups import TorchDeviceGroup
from ringtrain_torch.devices import backend_of, device_of

log = logging.getLogger("ringtrain")


@dataclass(frozen=True)
class TorchNodes:
    """Placement of a process set's ranks on nodes, with equally many ranks on each node.

    `positions`: for each node, the indexes in the process set of its ranks. `node`: index of this rank's node. `place`:
    index of this rank in its node.
    """

    positions: tuple[tuple[int, ...], ...]
    node: int
    place: int

    @classmethod
    def of(cls, names: Sequence[str], position: int) -> "TorchNodes | None":
        """Return the placement; None if nodes have different numbers of ranks or only one each. `names`: node of each
        rank. `position`: index of this rank in the process set."""
        by_name: dict[str, list[int]] = {}
        for at, name in enumerate(names):
            by_name.setdefault(name, []).append(at)
        sizes = {len(positions) for positions in by_name.values()}
        if len(sizes) > 1 or sizes == {1}:
            return None
        own = by_name[names[position]]
        return cls(tuple(map(tuple, by_name.values())), list(by_name.values()).index(own), own.index(position))

    @property
    def local(self) -> tuple[int, ...]:
        """Indexes, in the process set, of the ranks on this rank's node."""
        return self.positions[self.node]

    def equal(self, place: int) -> tuple[int, ...]:
        """Return the indexes, in the process set, of the ranks that have index `place` in their nodes."""
        return tuple(own[place] for own in self.positions)


def open_node_sum(
    params: Mapping[str, Any], group: ProcessGroup, process_set: ProcessSet, *, suits: bool
) -> "TorchNodeSum | None":
    """Return a reducer that sums the gradients of `params` on the devices of each node; None, on all ranks, if the
    reduction uses host memory. Collective in `group`, whose ranks are those of `process_set`.

    `suits`: whether the optimizer can work with sums. Raises ConfigurationError, on all ranks, if RINGTRAIN_TRANSPORT
    requests torch.distributed and it has no group for these devices.
    """
    world = current_world()
    tensors = list(params.values())
    backend = backend_of(tensors) if suits else ""
    asked = world.config.ways.transport == "torch"
    own = {
        "node": world.pod,
        "device": device_of(tensors, backend) if backend else "",
    }
    said = group.allgather_object(own, "node sums")
    nodes = TorchNodes.of([one["node"] for one in said], group.rank)
    if nodes is None or not backend or any(one["device"] != own["device"] for one in said):
        if asked and group.rank == 0:
            why = (
                "each node has only one rank, or nodes have different numbers of ranks"
                if suits
                else "elastic, compression, check_finite or sharded=False requires it"
            )
            log.info("HostOptimizer copies each gradient to host memory instead of summing on devices: %s", why)
        return None
    number = number_of(process_set)
    near, calls = world.open_foreign(number, tuple(group.ranks[at] for at in nodes.local))
    equal = nodes.equal(nodes.place)
    between = world.open_group(number, tuple(group.ranks[at] for at in equal)) if len(equal) > 1 else None
    made, reason = None, ""
    try:
        made = near.call(lambda communicator: TorchDeviceGroup(calls, communicator, tensors[0].device, backend, asked))
        world.run_with_set(number, made)
    except ConfigurationError as error:
        reason = str(error)
    reasons = list(filter(None, group.allgather_object(reason, "node sums made")))
    if made is None or reasons:
        if made is not None:
            made.wait_stopped(0)
        if asked:
            raise ConfigurationError(reasons[0])
        level = logging.DEBUG if group.rank else logging.WARNING
        log.log(level, "%s; the gradients of HostOptimizer are reduced in host memory", reasons[0])
        return None
    log.log(
        logging.DEBUG if group.rank else logging.INFO,
        "HostOptimizer: the %d devices of a node sum gradients through torch.distributed's %s, and each copies a part "
        "of the sum to host memory (with RINGTRAIN_TRANSPORT=host: all of its own gradients)",
        len(nodes.local), backend,
    )  # fmt: skip
    return TorchNodeSum(nodes, group, made, between)


@dataclass
class _SummedGradients:
    """Gradients of one bucket on the device, summed over micro-steps. `events`: recorded after each addition."""

    flat: torch.Tensor
    puts: dict[str, int] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)

    @property
    def micro_steps(self) -> int:
        return max(self.puts.values())


@dataclass(frozen=True)
class _Cuts:
    """Division of one bucket into sections, one for each rank of a node.

    `sections`: for each index of a rank in its node, a range of elements per node: the shard of the rank with this
    index on that node. `lengths`: number of elements of each section. `bounds`: offsets of the ranges in this rank's
    section.
    """

    sections: tuple[tuple[slice, ...], ...]
    lengths: tuple[int, ...]
    bounds: tuple[int, ...]

    @classmethod
    def of(cls, bucket: Bucket, nodes: TorchNodes) -> "_Cuts":
        places = range(len(nodes.local))
        sections = tuple(tuple(bucket.shard(at) for at in nodes.equal(place)) for place in places)
        lengths = [[shard.stop - shard.start for shard in section] for section in sections]
        return cls(sections, tuple(map(sum, lengths)), _offsets(lengths[nodes.place]))


class TorchNodeSum:
    """`DeviceReducer` of a torch model, which sums over the devices of a node. Half types are summed in float32."""

    def __init__(
        self, nodes: TorchNodes, group: ProcessGroup, near: TorchDeviceGroup, between: ProcessGroup | None
    ) -> None:
        """Create the reducer. `near`: group of this node's devices. `between`: group with one rank of each node, which
        has the same index in its node as this rank; None if all ranks are on one node."""
        self._nodes, self._group, self._near, self._between = nodes, group, near, between
        self._device = near.device
        self._sums: dict[int, _SummedGradients] = {}
        self._weights: dict[int, torch.Tensor] = {}

    def attach(self, layout: Layout, arenas: ParameterArenas) -> None:
        self._layout, self._arenas = layout, arenas
        starts = parameter_beginnings(layout)
        self._beginnings = {name: torch.tensor(at, device=self._device) for name, at in starts.items()}
        shared = [bucket for bucket in layout.buckets if not bucket.local]
        self._cuts = {bucket.index: _Cuts.of(bucket, self._nodes) for bucket in shared}
        for bucket in shared:
            weights = to_tensor(arenas.weights(bucket))
            self._weights[bucket.index] = weights if self._on_host else weights.to(self._device)

    def carries(self, name: str) -> bool:
        """Return whether this reducer reduces the parameter `name`. It does not reduce parameters that stay local."""
        return self._layout.locations[name][0].index in self._cuts

    def weight(self, name: str) -> torch.Tensor:
        """Return the weight `name` as flat memory on the device, which each update overwrites."""
        bucket, location = self._layout.locations[name]
        return self._weights[bucket.index][location.start : location.stop]

    def put(self, name: str, gradient: torch.Tensor | None) -> None:
        """Add the gradient of `name` after the device has computed it; None if this rank has no gradient."""
        bucket, location = self._layout.locations[name]
        held = self._sums.get(bucket.index)
        if held is None:
            dtype = torch.float32 if bucket.half else self._weights[bucket.index].dtype
            flat = torch.empty(bucket.size, dtype=dtype, device=self._device)
            held = self._sums.setdefault(bucket.index, _SummedGradients(flat))
        target = held.flat[location.start : location.stop]
        if gradient is None and name not in held.puts:
            target.fill_(ABSENT)
        elif gradient is not None and name in held.puts:
            target.view(gradient.shape).add_(gradient)
        elif gradient is not None:
            target.view(gradient.shape).copy_(gradient)
        if gradient is not None and target.numel():
            target[self._beginnings[name]] += 0.0  # not -0, which marks an absent gradient
        held.puts[name] = held.puts.get(name, 0) + 1
        if not self._on_host:
            held.events.append(torch.get_device_module(self._device).Event())
            held.events[-1].record()

    def forget(self) -> None:
        """Discard the gradients of an update that is cancelled."""
        self._sums.clear()

    def reduce_scatter(self, bucket: Bucket) -> PendingCollective:
        held = self._sums.pop(bucket.index)
        return self._group.begin(lambda _: self._reduce(bucket, held))

    def all_gather(self, bucket: Bucket) -> PendingCollective:
        return self._group.begin(lambda _: self._gather(bucket))

    def close(self) -> None:
        """Close the process groups of this reducer, after collectives in progress, in which other ranks may
        take part."""
        with contextlib.suppress(RingtrainError):  # a world that was left has ended them
            self._group.call(lambda _: self._near.wait_stopped(0))
        if self._between is not None:
            self._between.close()

    @property
    def _on_host(self) -> bool:
        return self._device.type == "cpu"

    def _reduce(self, bucket: Bucket, held: _SummedGradients) -> None:
        cuts, own = self._cuts[bucket.index], self._arenas.gradients(bucket)[bucket.shard(self._group.rank)]
        for event in held.events:
            event.synchronize()
        with self._near.stream(), torch.no_grad():
            total = self._node_total(held.flat, cuts)
            part = total.numpy() if self._on_host else _begin_copy(total)
            self._near.synchronize()
        if self._between is not None:
            self._between.reduce_scatter(part, cuts.bounds, Sum).wait()
        summed = part[slice(*cuts.bounds[self._nodes.node :][:2])]
        own[...] = summed / np.float32(self._group.size * held.micro_steps) if bucket.half else summed

    def _node_total(self, flat: torch.Tensor, cuts: _Cuts) -> torch.Tensor:
        """Return the sum of this rank's section over the node's devices."""
        sent = torch.cat([flat[shard] for section in cuts.sections for shard in section])
        length = cuts.lengths[self._nodes.place]
        received = sent.new_empty(length * len(cuts.sections))
        self._near.all_to_all(received, sent, [length] * len(cuts.sections), list(cuts.lengths))
        total, *others = received.split(length) if length else [received]
        for other in others:
            total += other
        return total

    def _gather(self, bucket: Bucket) -> None:
        cuts, arena = self._cuts[bucket.index], self._arenas.weights(bucket)
        part: Array = np.empty(cuts.bounds[-1], arena.dtype)
        part[slice(*cuts.bounds[self._nodes.node :][:2])] = arena[bucket.shard(self._group.rank)]
        if self._between is not None:
            self._between.all_gather(part, cuts.bounds).wait()
        weights, most = self._weights[bucket.index], max(cuts.lengths)
        with self._near.stream(), torch.no_grad():
            padded = weights.new_empty(most)
            padded[: len(part)] = to_tensor(part)
            gathered = weights.new_empty(most * len(cuts.sections))
            self._near.all_gather(gathered.view(torch.uint8), padded.view(torch.uint8))
            pieces = {
                shard.start: piece
                for place, section in enumerate(cuts.sections)
                for shard, piece in _split_section(section, gathered[place * most :])
            }
            torch.cat([pieces[start] for start in sorted(pieces)], out=weights)
            self._near.synchronize()


def _split_section(section: Sequence[slice], gathered: torch.Tensor) -> list[tuple[slice, torch.Tensor]]:
    """Split the gathered `section` into its shards; return the non-empty ones with their ranges in the bucket."""
    edges = _offsets([shard.stop - shard.start for shard in section])
    pieces = zip(section, pairwise(edges), strict=True)
    return [(shard, gathered[start:stop]) for shard, (start, stop) in pieces if start < stop]


def _offsets(lengths: Sequence[int]) -> tuple[int, ...]:
    return tuple(accumulate(lengths, initial=0))


def _begin_copy(tensor: torch.Tensor) -> Array:
    """Begin to copy `tensor` to the host; return the copy, which may be read after the stream has finished."""
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
    pinned.copy_(tensor, non_blocking=True)
    array: Array = pinned.numpy()
    return array
