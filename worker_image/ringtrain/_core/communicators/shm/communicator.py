"""Collectives through shared memory, with the same results as those over the network."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.communicators.base import Communicator, SharedCommunicatorTurn, ShortAllreduce
from ringtrain._core.communicators.shm.join import ShmHostGroups, allocate_shared_memory
from ringtrain._core.communicators.shm.native import ShmCollective, chunks_of
from ringtrain._core.kernels.update import ChunkUpdate
from ringtrain._core.reduction.cuts import Bounds, even_bounds, is_same_memory, length_offsets
from ringtrain._core.reduction.fold import Flat
from ringtrain._core.reduction.ops import ReduceOp
from ringtrain._core.wire.signature import WireSignature, with_layout

_NOTHING: Final = np.empty(0, np.uint8)


class SharedMemoryCommunicator:
    """Communicator of ranks in one pod, all of which map one shared-memory segment.

    Collectives that are rare or have parts of unknown length use `network`, after the ranks have compared signatures.
    """

    overlaps: Final = False
    # A barrier costs 20 us, as much as copying 200 KiB.
    fusion_bytes: Final = 1 << 20

    def __init__(self, network: Communicator, hosts: ShmHostGroups) -> None:
        self._network = network
        self.ranks, self.position = network.ranks, network.position
        self._hosts = hosts
        self._group = hosts.group
        self._size = len(network.ranks)

    def all_reduce(self, what: WireSignature, source: Flat, target: Flat, op: ReduceOp) -> None:
        chunks = chunks_of(even_bounds(len(source), self._size))
        own = target[slice(*chunks[self.position])]
        work = ShmCollective(chunks, source, op, own=own, gathered=target, average_over=self._size, whole=True)
        self._group.run(what, work)

    def short_allreduce(
        self, meaning: Callable[[Any, ReduceOp, str | None], WireSignature | None], turn: SharedCommunicatorTurn
    ) -> ShortAllreduce | None:
        return self._group.short_allreduce(meaning, turn)

    def all_reduce_grouped(self, what: WireSignature, sources: Sequence[Flat], target: Flat, op: ReduceOp) -> None:
        chunks = chunks_of(even_bounds(len(target), self._size))
        own = target[slice(*chunks[self.position])]
        pieces = None if _are_in_place(sources, target) else [source for source in sources if len(source)] or [target]
        work = ShmCollective(
            chunks, target, op, own=own, gathered=target, average_over=self._size, whole=True, pieces=pieces
        )
        self._group.run(what, work)

    def reduce_scatter(self, what: WireSignature, source: Flat, bounds: Bounds, target: Flat, op: ReduceOp) -> None:
        work = ShmCollective(chunks_of(bounds), source, op, own=target, average_over=self._size)
        self._group.run(with_layout(what, bounds), work)

    def memory_of(self, position: int, buffer: Flat) -> Flat | None:
        return self._group.memory_of(position, buffer)

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        return self._group.can_update(gradients, weights)

    def update(self, what: WireSignature, gradients: Flat, bounds: Bounds, op: ReduceOp, change: ChunkUpdate) -> None:
        work = ShmCollective(chunks_of(bounds), gradients, op, average_over=self._size)
        self._group.update(with_layout(what, bounds), work, change)

    def finish_updates(self) -> bool:
        return False  # ranks have one barrier per update

    def all_gather(self, what: WireSignature, buffer: Flat, bounds: Bounds) -> None:
        self._group.run(with_layout(what, bounds), ShmCollective(chunks_of(bounds), buffer, gathered=buffer))

    def all_gather_parts(self, what: WireSignature, part: Flat) -> list[Flat]:
        self.barrier(what)
        return self._network.all_gather_parts(what, part)

    def broadcast(self, what: WireSignature, buffer: Flat, root: int) -> None:
        """Fill `buffer` with the buffer of `root`, by an all-gather in which only `root` has a chunk."""
        chunks = tuple((0, len(buffer) if p == root else 0) for p in range(self._size))
        self._group.run(what, ShmCollective(chunks, buffer, gathered=buffer))

    def all_to_all(
        self, what: WireSignature, parts: Sequence[Flat], origins: Sequence[int] | None = None
    ) -> list[Flat]:
        self.barrier(what)
        return self._network.all_to_all(what, parts, origins)

    def send_receive(self, what: WireSignature, source: Flat, to: int, target: Flat, origin: int) -> None:
        self.barrier(what)
        self._network.send_receive(what, source, to, target, origin)

    def barrier(self, what: WireSignature) -> None:
        nothing = ShmCollective(((0, 0),) * self._size, _NOTHING, own=_NOTHING, gathered=_NOTHING, whole=True)
        self._group.run(what, nothing)

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        self.barrier(WireSignature("allocate", layout=(nbytes,)))
        return allocate_shared_memory(self._network, self._hosts, nbytes)

    def close(self) -> None:
        self._group.close()
        self._network.close()


def _are_in_place(sources: Sequence[Flat], target: Flat) -> bool:
    """Return whether each of `sources` lies in `target` where the concatenation would place it."""
    bounds = length_offsets([len(source) for source in sources])
    return all(is_same_memory(source, target[start:]) for source, start in zip(sources, bounds, strict=False))
