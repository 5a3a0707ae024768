"""Process group: a communicator, and a thread that runs its collectives in the order of submission.

The host optimizer, the public collectives and the named queue use it. `CollectiveGroup` is the interface for optimizer,
input and checkpoints; tests run the same code on a `CollectiveGroup` of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.communicators.base import (
    Communicator,
    MappingCommunicator,
    MemorySharingCommunicator,
    UpdatingCommunicator,
)
from ringtrain._core.communicators.foreign import exchange_values
from ringtrain._core.kernels.update import ChunkUpdate
from ringtrain._core.process_groups.executor import Handle, ProcessGroupExecutor, T
from ringtrain._core.process_groups.tensors import checked_collective_bounds, flat_signature
from ringtrain._core.process_groups.work import Work, barrier, short_allreduce, short_barrier
from ringtrain._core.reduction.ops import ReduceOp, Sum
from ringtrain._core.wire.dtypes import dtype_name
from ringtrain._core.wire.signature import ANY_ROWS, WireSignature, WireTensorSignature

Flat = NDArray[Any]


class PendingCollective(Protocol):
    """Interface of a collective in progress."""

    def wait(self) -> Any:
        """Wait until the collective is done on this rank, and return its result or raise its error."""


class CollectiveGroup(Protocol):
    """Interface of a group of ranks that train one model. All ranks call the same collectives in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def allocate(self, length: int, dtype: Any) -> Flat:
        """Return a zeroed buffer that this group's collectives reduce fast. All ranks pass the same arguments."""

    def all_reduce(self, buffer: Flat, op: ReduceOp = Sum) -> PendingCollective:
        """Begin to reduce `buffer` over all ranks in place; `wait` on the returned object ends when this is done."""

    def reduce_scatter(self, buffer: Flat, bounds: Sequence[int], op: ReduceOp = Sum) -> PendingCollective:
        """Begin to reduce `buffer[bounds[r]:bounds[r + 1]]` over all ranks, and to store the result in place on rank r
        only.

        The ranks' values of every element are reduced in a fixed order, so the bits of the result do not depend on
        `bounds`. The rest of `buffer`
        is undefined afterwards.
        """

    def all_gather(self, buffer: Flat, bounds: Sequence[int]) -> PendingCollective:
        """Begin to copy `buffer[bounds[r]:bounds[r + 1]]` of each rank r to all other ranks, in place."""

    def parallel_group(self) -> CollectiveGroup | None:
        """Return another group of the same ranks with its own order of collectives; None if that would not be faster.

        Collective.
        """

    def all_to_all(self, parts: Sequence[Flat], origins: Sequence[int] | None = None) -> PendingCollective:
        """Begin to send `parts[r]` (1-d) to rank r; `wait` returns the received arrays by rank.

        `origins`: the ranks from which this rank receives data. Either every rank passes its own `origins`, or no rank
        passes them.
        """

    def send_receive(self, source: Flat, to: int, target: Flat, origin: int) -> PendingCollective:
        """Begin to send `source` (1-d) to rank `to`, and to fill `target` with data from rank `origin`.

        Every rank sends to one rank and receives from one. Lengths may differ between pairs.
        """

    def memory_of(self, rank: int, buffer: Flat) -> Flat | None:
        """Return the buffer of `rank` that was allocated together with `buffer`; None if this process does not map it.

        The same on all ranks.
        """

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        """Return whether `update` supports `gradients` and `weights`, buffers from `allocate`. The same on all ranks.
        Collective."""

    def update(self, gradients: Flat, bounds: Sequence[int], op: ReduceOp, change: ChunkUpdate) -> None:
        """Reduce `gradients`, update each rank's chunk of the weights by `change`, and write the weights to all ranks.

        All ranks have the new weights when the next call of `update` returns. If `change.last` is True, they have them
        when this call returns. Do not write to `gradients` before that. The result is bitwise equal to that of
        `reduce_scatter`, the update and `all_gather`.
        """

    def finish_updates(self) -> bool:
        """Complete the weights of the previous update.

        Return False if they are complete only after the next barrier.
        """

    def broadcast(self, buffer: Flat) -> None:
        """Overwrite `buffer` (1-d) on every rank with the buffer of rank 0."""

    def broadcast_object(self, value: Any, what: str) -> Any:
        """Return the JSON-safe `value` of rank 0 on every rank. `what`: a description that ranks compare."""

    def allgather_object(self, value: Any, what: str) -> list[Any]:
        """Return the JSON-safe `value` of every rank, by rank. `what`: a description that ranks compare."""

    def gather_objects(self, value: Any, what: str) -> PendingCollective:
        """Begin `allgather_object`; `wait` returns its result."""


class ProcessGroup:
    """Ranks of a process set with a separate communicator. `rank` and roots are indices within the set.

    In-place collectives accept 1-d contiguous arrays in native byte order, cut at `bounds`: size + 1 ascending offsets
    from 0 to their length. They raise ConfigurationError for other arrays, MismatchError if ranks disagree, and
    PeerLost if a rank is lost.
    """

    def __init__(
        self,
        communicator: Communicator,
        executor: ProcessGroupExecutor,
        open_beside: Callable[[], ProcessGroup],
        closed: Callable[[], None],
    ) -> None:
        """Create a group from an open communicator and an executor.

        `open_beside`: opens another group of the same ranks with another executor; collective. `closed`: called by
        `close()`, once the group accepts no more work; releases the group's resources.
        """
        self._closed = closed
        self.communicator = communicator
        self._executor = executor
        self._open_parallel_group = open_beside
        self._parallel_groups: list[ProcessGroup] = []
        self.short_allreduce = short_allreduce(communicator, executor.turn)
        self.ranks = communicator.ranks
        self.rank = communicator.position
        self.size = len(communicator.ranks)

    def call(self, work: Callable[[Communicator], T]) -> T:
        """Run `work` after all work that was submitted before, and return its result."""
        return self._executor.call(work, self.communicator)

    def begin(self, work: Callable[[Communicator], T]) -> Handle[T]:
        """Submit `work`, which runs after all earlier work; return a handle for its result."""
        return self._executor.submit(lambda: work(self.communicator))

    def barrier(self) -> None:
        """Wait until every rank of the group has called `barrier`."""
        if not short_barrier(self.short_allreduce):
            self.call(barrier())

    def close(self) -> None:
        """Refuse further work in this group and its parallel groups, and release memory and file descriptors."""
        self._executor.stop()
        for group in self._parallel_groups:
            group.close()
        self._closed()

    def allocate(self, length: int, dtype: Any) -> Flat:
        kind = np.dtype(dtype)
        memory: Flat = self.call(lambda communicator: communicator.allocate(length * kind.itemsize))
        return memory.view(kind)

    def all_reduce(self, buffer: Flat, op: ReduceOp = Sum, name: str | None = None) -> Handle[None]:
        """Begin to reduce `buffer` over all ranks in place; `synchronize` on the returned handle ends when this is
        done."""
        what = flat_signature("all_reduce", buffer, name, op)
        return self.begin(lambda communicator: communicator.all_reduce(what, buffer, buffer, op))

    def reduce_scatter(
        self, buffer: Flat, bounds: Sequence[int], op: ReduceOp = Sum, name: str | None = None
    ) -> Handle[None]:
        what = flat_signature("reduce_scatter", buffer, name, op)

        def work(communicator: Communicator) -> None:
            cuts = checked_collective_bounds(bounds, buffer, self.size)
            communicator.reduce_scatter(what, buffer, cuts, buffer[cuts[self.rank] : cuts[self.rank + 1]], op)

        return self.begin(work)

    def all_gather(self, buffer: Flat, bounds: Sequence[int], name: str | None = None) -> Handle[None]:
        what = flat_signature("all_gather", buffer, name, None)
        return self.begin(
            lambda communicator: communicator.all_gather(
                what, buffer, checked_collective_bounds(bounds, buffer, self.size)
            )
        )

    def all_to_all(self, parts: Sequence[Flat], origins: Sequence[int] | None = None) -> Handle[list[Flat]]:
        dtypes = dict.fromkeys(dtype_name(part.dtype) for part in parts)
        what = WireSignature("all_to_all", tuple(WireTensorSignature(None, dtype, (ANY_ROWS,)) for dtype in dtypes))
        return self.begin(lambda communicator: communicator.all_to_all(what, parts, origins))

    def send_receive(self, source: Flat, to: int, target: Flat, origin: int) -> Handle[None]:
        what = WireSignature("send_receive", (WireTensorSignature(None, dtype_name(source.dtype), (ANY_ROWS,)),))
        return self.begin(lambda communicator: communicator.send_receive(what, source, to, target, origin))

    def memory_of(self, rank: int, buffer: Flat) -> Flat | None:
        return self.call(lambda ring: ring.memory_of(rank, buffer) if isinstance(ring, MappingCommunicator) else None)

    def broadcast(self, buffer: Flat) -> None:
        what = flat_signature("broadcast", buffer, None, None)
        self.call(lambda communicator: communicator.broadcast(what, buffer, 0))

    def parallel_group(self) -> ProcessGroup | None:
        if self.size == 1 or not self.communicator.overlaps:
            return None
        parallel = self._open_parallel_group()
        if isinstance(self.communicator, MemorySharingCommunicator) and isinstance(
            parallel.communicator, MemorySharingCommunicator
        ):
            parallel.communicator.use_memory_of(self.communicator)
        self._parallel_groups.append(parallel)
        return parallel

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        return self.call(lambda ring: isinstance(ring, UpdatingCommunicator) and ring.can_update(gradients, weights))

    def update(self, gradients: Flat, bounds: Sequence[int], op: ReduceOp, change: ChunkUpdate) -> None:
        what = flat_signature("update", gradients, None, op)
        cuts = checked_collective_bounds(bounds, gradients, self.size)
        self.call(lambda communicator: _group_updater(communicator).update(what, gradients, cuts, op, change))

    def finish_updates(self) -> bool:
        return self.call(lambda communicator: _group_updater(communicator).finish_updates())

    def broadcast_object(self, value: Any, what: str) -> Any:
        return self.allgather_object(value if self.rank == 0 else None, what)[0]

    def allgather_object(self, value: Any, what: str) -> list[Any]:
        return self.call(_group_objects(value, what))

    def gather_objects(self, value: Any, what: str) -> Handle[list[Any]]:
        return self.begin(_group_objects(value, what))


def _group_objects(value: Any, what: str) -> Work[list[Any]]:
    return lambda communicator: exchange_values(communicator, value, what)


def _group_updater(communicator: Communicator) -> UpdatingCommunicator:
    """Return `communicator` as the type that has `update`; the caller has checked `can_update` before."""
    return cast(UpdatingCommunicator, communicator)
