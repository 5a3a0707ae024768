"""Collectives over pods of several ranks: shared memory within a pod, gRPC between pods.

Up to twelve pods a reduction is a chain through the pods. Each pod folds its ranks' contributions onto the partial sum
of the previous pod, and sends the result to the next; the last pod has the result and sends it back. So every element
is the left fold in rank order, bitwise equal to a flat exchange, and a tensor crosses each link once in each direction
at any number of ranks per pod. Rank l of every pod handles its own part of the tensor; segments are pipelined through
the chain. See docs/decisions/0002-chain-of-pods.md.

Between more pods a reduction is a tree of the pods' sums: see `pod_tree.py`. The same holds for many ranks without
shared memory, each of which counts as a pod.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.communicators.broadcast import PodBroadcastRoute
from ringtrain._core.communicators.chain import ChainedPods, PodChain, PodChainSection, gather_by_pods
from ringtrain._core.communicators.doubling import PART_BYTES_MOST
from ringtrain._core.communicators.exchange import ExchangeCommunicator
from ringtrain._core.communicators.fused_chain import PodChainUpdates
from ringtrain._core.communicators.pairing import PodPairing, scattered_section, shared_section
from ringtrain._core.communicators.pod_tree import PodTree
from ringtrain._core.communicators.shm.group import ShmLoneRank
from ringtrain._core.communicators.shm.join import ShmHostGroups, allocate_shared_memory
from ringtrain._core.communicators.shm.native import Chunks
from ringtrain._core.communicators.steps import ExchangeScratchBuffers
from ringtrain._core.kernels.update import ChunkUpdate
from ringtrain._core.reduction.cuts import Bounds, even_bounds
from ringtrain._core.reduction.fold import Flat
from ringtrain._core.reduction.ops import ReduceOp
from ringtrain._core.wire.signature import WireSignature, with_layout

# Up to this size all ranks may gather all ranks' data; longer tensors go from pod to pod.
_FLAT_BYTES: Final = PART_BYTES_MOST
# Up to this number of pods a rank reads long chunks from all others of its column: see bench/scale/ring.md.
GATHER_PODS_MOST_DIRECT: Final = 24
# In the flat exchange each rank of a pod receives all bytes over the network (chunk times the square of the pod's
# ranks); otherwise there is one barrier per pod. See bench/scale/ring.md.
_FLAT_GATHER_BYTES: Final = 128 << 10
# Several segments fill the chain: those of a short tensor are shorter, down to a size at which their fixed cost shows.
_SEGMENTS: Final = 16
_LEAST_SEGMENT_BYTES: Final = 128 << 10
# Between more pods an allreduce by a tree of their sums is faster at any length: see bench/scale/ring.md.
CHAIN_PODS_MOST: Final = 12
# More ranks without shared memory use the tree as well. With fewer the direct exchange of long tensors is faster: see
# bench/scale/ring.md.
DIRECT_RANKS_MOST: Final = 64
# Up to this size whole parts are sent both ways: half the number of hops is worth more than the bytes.
_DOUBLED_BYTES: Final = 512 << 10
# Sections of a rank's part use each other's idle time. More or shorter ones cost more than they gain if ranks share
# cores: see bench/scale/ring.md.
_TREE_SECTIONS: Final = 16
# Each section of a reduce-scatter needs a barrier per pod.
_SCATTER_SECTIONS: Final = 4
_LEAST_TREE_BYTES: Final = 256 << 10

# Segments of a rank's part of a bucket: see docs/decisions/0009-reduce-and-update-in-one-pass.md.
_UPDATE_SEGMENTS: Final = 4
_LEAST_UPDATE_BYTES: Final = 256 << 10


class HierarchicalCommunicator:
    """Communicator of pods with the same number of ranks each. Short or rare collectives ignore pods and use `network`.

    If `hosts` is None, each rank counts as a pod, and every reduction is a tree of the ranks' data. Up to
    `chain_pods_most` pods every reduction is the left fold in rank order. Between more pods every reduction, also of
    short tensors, is a tree of the pods' sums: see `pod_tree.py`.
    """

    overlaps: Final = True
    # An exchange costs milliseconds; see bench/README.
    fusion_bytes: Final = 64 << 20

    def __init__(
        self, network: ExchangeCommunicator, hosts: ShmHostGroups | None, chain_pods_most: int = CHAIN_PODS_MOST
    ) -> None:
        self._network = network
        self.ranks, self.position = network.ranks, network.position
        self._hosts = hosts
        self._group = group = ShmLoneRank(network.ranks[network.position]) if hosts is None else hosts.group
        places = tuple((p,) for p in range(len(network.ranks))) if hosts is None else hosts.positions
        local = group.position
        self._pods = ChainedPods(
            size=len(network.ranks),
            local=local,
            pod=next(i for i, positions in enumerate(places) if network.position in positions),
            last=len(places) - 1,
            column=tuple(network.ranks[positions[local]] for positions in places),
            group=group,
            network=network,
            pairing=PodPairing(len(places)),
            scratch=ExchangeScratchBuffers(),
        )
        self._is_tree = hosts is None or len(places) > chain_pods_most
        self._updates = None if hosts is None or self._is_tree else PodChainUpdates(self._pods, hosts.group)
        self._flat_bytes = min(_FLAT_BYTES, network.segment_bytes)

    def all_reduce(self, what: WireSignature, source: Flat, target: Flat, op: ReduceOp) -> None:
        if self._uses_flat(source.nbytes):
            self._network.all_reduce(what, source, target, op)
            return
        bounds = even_bounds(len(source), len(self._group.ranks))
        if self._is_tree:
            self._tree_of(what, bounds, source, op).all_reduce(source, target)
            return
        chain = PodChain(self._pods, what, self._cut(bounds, None, source), op)
        chain.all_reduce(source, target)

    def reduce_scatter(self, what: WireSignature, source: Flat, bounds: Bounds, target: Flat, op: ReduceOp) -> None:
        if self._uses_flat(source.nbytes):
            self._network.reduce_scatter(what, source, bounds, target, op)
            return
        if self._is_tree:
            self._scatter_by_tree(what, source, bounds, target, op)
            return
        what = with_layout(what, bounds)
        mapped = self._group.mapped(what, source)
        sections = [
            s
            for pod in range(self._pods.last + 1)
            for s in self._cut(self._of_pod(bounds, pod), pod, source, mapped is not None)
        ]
        chain = PodChain(self._pods, what, sections, op, mapped)
        chain.reduce_scatter(source, target, bounds[self.position])

    def all_gather(self, what: WireSignature, buffer: Flat, bounds: Bounds) -> None:
        """Gather the chunks: over the network from the ranks with this rank's index in other pods, then in shared
        memory within the pod.

        Short chunks between many pods use the flat exchange, because the barriers within pods would take longer.
        """
        longest = max(end - start for start, end in pairwise(bounds)) * buffer.itemsize
        if self._hosts is None or not longest or self._uses_flat_gather(longest):
            self._network.all_gather(what, buffer, bounds)
            return
        what, mapped = with_layout(what, bounds), self._group.mapped(what, buffer)
        sections = [
            self._cut(self._of_pod(bounds, pod), pod, buffer, mapped is not None) for pod in range(self._pods.last + 1)
        ]
        passes_on = longest <= self._flat_bytes or self._pods.last >= GATHER_PODS_MOST_DIRECT
        gather_by_pods(self._pods, what, sections, buffer, passes_on, mapped)

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        return self._updates is not None and self._updates.can_update(gradients, weights)

    def update(self, what: WireSignature, gradients: Flat, bounds: Bounds, op: ReduceOp, change: ChunkUpdate) -> None:
        assert self._updates is not None, "call can_update first"
        longest = max(end - start for start, end in pairwise(bounds))
        step = self._step(longest, gradients, _UPDATE_SEGMENTS, _LEAST_UPDATE_BYTES)
        self._updates.update(with_layout(what, bounds), gradients, bounds, op, change, step)

    def finish_updates(self) -> bool:
        return self._updates is not None and self._updates.finish_updates()

    def all_gather_parts(self, what: WireSignature, part: Flat) -> list[Flat]:
        return self._network.all_gather_parts(what, part, None if self._hosts is None else self.all_gather)

    def all_to_all(
        self, what: WireSignature, parts: Sequence[Flat], origins: Sequence[int] | None = None
    ) -> list[Flat]:
        return self._network.all_to_all(what, parts, origins)

    def send_receive(self, what: WireSignature, source: Flat, to: int, target: Flat, origin: int) -> None:
        self._network.send_receive(what, source, to, target, origin)

    def broadcast(self, what: WireSignature, buffer: Flat, root: int) -> None:
        if self._hosts is None or buffer.nbytes <= self._flat_bytes:
            self._network.broadcast(what, buffer, root)
            return
        pods = self._pods
        first, giver = divmod(root, len(pods.group.ranks))
        ranks = pods.column[first:] + pods.column[:first]
        route = PodBroadcastRoute(ranks, (pods.pod - first) % len(ranks), pods.group, giver)
        self._network.broadcast_along(route, what, buffer)

    def barrier(self, what: WireSignature) -> None:
        self._network.barrier(what)

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        if self._hosts is None:
            return self._network.allocate(nbytes)
        self._network.barrier(WireSignature("allocate", layout=(nbytes,)))
        return allocate_shared_memory(self._network, self._hosts, nbytes)

    def use_memory_of(self, other: "HierarchicalCommunicator") -> None:
        if self._hosts is not None and other._hosts is not None:
            self._hosts.group.use_arenas_of(other._hosts.group)

    def close(self) -> None:
        self._group.close()
        self._network.close()

    @property
    def _doublings(self) -> int:
        """Return the number of successive exchanges that a direct all-gather between all ranks needs."""
        return (len(self.ranks) - 1).bit_length()

    def _uses_flat(self, nbytes: int) -> bool:
        """Return whether a tensor of `nbytes` uses the direct exchange of all ranks, which ignores pods.

        This is so for an empty tensor. Any other tensor must be short, the pods must not form a tree, and the direct
        exchange must have fewer steps than the chain of pods.
        """
        if self._is_tree:
            return not nbytes
        return not nbytes or (nbytes <= self._flat_bytes and 2 * self._pods.last > self._doublings)

    def _uses_flat_gather(self, longest: int) -> bool:
        """Return whether chunks of up to `longest` bytes are gathered faster without pods."""
        is_short = longest <= self._flat_bytes and longest * len(self._group.ranks) ** 2 <= _FLAT_GATHER_BYTES
        return is_short and self._doublings < self._pods.last

    def _tree_of(self, what: WireSignature, bounds: Bounds, source: Flat, op: ReduceOp) -> PodTree:
        pods, doubles = self._pods, source.nbytes <= _DOUBLED_BYTES
        longest = max(end - start for start, end in pairwise(bounds))
        step = longest if doubles else self._step(longest, source, _TREE_SECTIONS, _LEAST_TREE_BYTES)
        sections = [
            shared_section(chunks, pods.local, pods.pairing) for chunks in _pod_chain_pieces(bounds, longest, step)
        ]
        return PodTree(pods, what, sections, op, doubles)

    def _scatter_by_tree(self, what: WireSignature, source: Flat, bounds: Bounds, target: Flat, op: ReduceOp) -> None:
        """Run a reduce-scatter by the tree of pods, for more pods than the chain supports.

        For a short tensor every rank gets the whole result, because separate sums of each pod's chunks would need a
        barrier for each.
        """
        what = with_layout(what, bounds)
        if source.nbytes <= _DOUBLED_BYTES:
            result = np.empty_like(source)
            pieces = even_bounds(len(source), len(self._group.ranks))
            self._tree_of(what, pieces, source, op).all_reduce(source, result)
            target[...] = result[bounds[self.position] : bounds[self.position + 1]]
            return
        pods = self._pods
        longest = max(end - start for start, end in pairwise(bounds))
        step = max(
            1,
            self._step(longest * (pods.last + 1), source, _SCATTER_SECTIONS, _LEAST_TREE_BYTES) // (pods.last + 1),
        )
        by_pod = [_pod_chain_pieces(self._of_pod(bounds, pod), longest, step) for pod in range(pods.last + 1)]
        sections = [
            scattered_section(chunks, pods.pod, pods.local, pods.pairing) for chunks in zip(*by_pod, strict=True)
        ]
        PodTree(pods, what, sections, op, doubles=False).reduce_scatter(source, target, bounds[self.position])

    def _step(self, length: int, like: Flat, segments: int, least: int) -> int:
        """Return the number of elements per segment of `length` elements that have the dtype of `like`.

        There are about `segments` segments, but each has at least `least` bytes and at most the network's
        `segment_bytes`.
        """
        least = min(least, self._network.segment_bytes)
        bytes_each = min(max(length * like.itemsize // segments, least), self._network.segment_bytes)
        return max(1, bytes_each // like.itemsize)

    def _of_pod(self, bounds: Bounds, pod: int) -> Bounds:
        ranks = len(self._group.ranks)
        return bounds[pod * ranks : (pod + 1) * ranks + 1]

    def _cut(self, bounds: Bounds, owner: int | None, like: Flat, is_mapped: bool = False) -> list[PodChainSection]:
        """Cut the chunks at `bounds` into sections that pass the chain one after the other.

        `owner`: pod that needs the results; None: all pods. `like`: any array of the same dtype. `is_mapped`: whether
        the ranks of a pod can read each other's buffers.
        """
        longest = max(end - start for start, end in pairwise(bounds))
        fills = (_UPDATE_SEGMENTS, _LEAST_UPDATE_BYTES) if is_mapped else (_SEGMENTS, _LEAST_SEGMENT_BYTES)
        return [
            PodChainSection(chunks, owner)
            for chunks in _pod_chain_pieces(bounds, longest, self._step(longest, like, *fills))
        ]


def _pod_chain_pieces(bounds: Bounds, longest: int, step: int) -> list[Chunks]:
    """Cut every chunk at `bounds` into pieces of `step` elements; pieces after the end of a short chunk are empty.

    `longest`: length of the longest chunk.
    """
    return [
        tuple((min(a + at, b), min(a + at + step, b)) for a, b in pairwise(bounds)) for at in range(0, longest, step)
    ]
