"""Interfaces that every communicator (shared memory, network, MPI) implements for the public collectives."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.kernels.update import ChunkUpdate
from ringtrain._core.reduction.cuts import Bounds
from ringtrain._core.reduction.fold import Flat
from ringtrain._core.reduction.ops import ReduceOp
from ringtrain._core.wire.signature import WireSignature


class Communicator(Protocol):
    """Collectives over flat buffers for one process set.

    All ranks of the set call the same methods in the same order. `what` is compared between ranks; if they differ, all
    raise MismatchError. Every method raises PeerLost, on all ranks, instead of returning a partial result. Buffers are
    1-d and contiguous, and are not used after the return.
    """

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the world ranks of the process set. A rank's index in this tuple is its position."""

    @property
    def position(self) -> int:
        """Return the index of this rank in `ranks`."""

    @property
    def overlaps(self) -> bool:
        """Return whether running two collectives at once is faster than one after the other. The same on all ranks.

        False in shared memory, where two collectives would compete for the same cores. False for MPI, because not every
        MPI library supports two at once.
        """

    @property
    def fusion_bytes(self) -> int:
        """Return the size in bytes up to which several tensors are copied into one buffer and sent together."""

    def all_reduce(self, what: WireSignature, source: Flat, target: Flat, op: ReduceOp) -> None:
        """Reduce `source` of all ranks into `target`, which may be `source`."""

    def reduce_scatter(self, what: WireSignature, source: Flat, bounds: Bounds, target: Flat, op: ReduceOp) -> None:
        """Reduce over all ranks; store the result of this rank's chunk in `target`, which may be that chunk."""

    def all_gather(self, what: WireSignature, buffer: Flat, bounds: Bounds) -> None:
        """Fill `buffer` in place with every rank's chunk; `bounds` are the offsets of the chunks."""

    def all_gather_parts(self, what: WireSignature, part: Flat) -> list[Flat]:
        """Return the `part` of every rank, in the order of `ranks`; lengths may differ."""

    def broadcast(self, what: WireSignature, buffer: Flat, root: int) -> None:
        """Fill `buffer` in place with the buffer of the rank at position `root`."""

    def all_to_all(
        self, what: WireSignature, parts: Sequence[Flat], origins: Sequence[int] | None = None
    ) -> list[Flat]:
        """Send `parts[p]` to the rank at position p; return the received parts in the order of `ranks`.

        `origins`: the positions from which this rank receives data; only these need a connection. Either every rank
        passes its own `origins`, or no rank passes them.
        """

    def send_receive(self, what: WireSignature, source: Flat, to: int, target: Flat, origin: int) -> None:
        """Send `source` to the rank at position `to`, and fill `target` with data from the rank at position `origin`.

        Every rank sends to one rank and receives from one rank.
        """

    def barrier(self, what: WireSignature) -> None:
        """Wait until every rank of the process set has called `barrier`."""

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Return a zeroed buffer that may make collectives faster than other memory.

        Collective: all ranks pass the same `nbytes`.
        """

    def close(self) -> None:
        """Release the communicator's resources; no collective may be in progress on this rank."""


@runtime_checkable
class GroupedReducer(Protocol):
    """Communicator that can reduce several separate buffers in one collective, as fast as one buffer."""

    def all_reduce_grouped(self, what: WireSignature, sources: Sequence[Flat], target: Flat, op: ReduceOp) -> None:
        """Reduce the concatenation of `sources` into `target`. A source may already lie at its place in `target`."""


# Arguments: an array, the operation, its name, and whether it is changed in place. Returns the result of `allreduce`,
# or None: the caller must then use the normal path. Other ranks may use either; both exchange and compare the same
# data.
ShortAllreduce = Callable[[Any, ReduceOp, str | None, bool], Any]


class SharedCommunicatorTurn(Protocol):
    """Lock that a thread must hold to run a collective. Compiled code (`kernels/native/calls.c`) uses it as well.

    `held`: the lock itself. `wanted`: number of threads that own the lock or wait for it. After the lock was closed,
    `wanted` stays above 0.
    """

    held: threading.Lock
    wanted: int

    def counted(self) -> AbstractContextManager[None]:
        """Count the calling thread in `wanted` while it finishes a collective that compiled code began."""


@runtime_checkable
class ShortReducer(Protocol):
    """Communicator with a fast allreduce for short arrays, which does not build a signature in each call."""

    def short_allreduce(
        self, meaning: Callable[[Any, ReduceOp, str | None], WireSignature | None], turn: SharedCommunicatorTurn
    ) -> ShortAllreduce | None:
        """Return the fast allreduce function, or None if this communicator has no fast path.

        The arguments of the function are an array, the operation, a name, and whether to reduce in place. If the
        operation is not a ReduceOp but `meaning` returns a signature, the call is a barrier on a zero-length array. The
        function returns None if the array is long, if `meaning` returns None, or if another thread has `turn` or waits
        for it. While the function waits for other ranks, the time counts as `step_time.REDUCTION`.
        """


@runtime_checkable
class MappingCommunicator(Protocol):
    """Communicator whose ranks can read and write each other's buffers from `allocate`, in shared memory."""

    def memory_of(self, position: int, buffer: Flat) -> Flat | None:
        """Return the buffer of the rank at `position` that was allocated together with `buffer`; None if it is not
        mapped."""


@runtime_checkable
class MemorySharingCommunicator(Protocol):
    """Communicator that reduces buffers from its own `allocate` faster than other memory."""

    def use_memory_of(self, other: Any) -> None:
        """Treat all buffers that `other` allocates, now or later, like buffers of this communicator.

        `other`: a communicator of the same class and ranks.
        """


@runtime_checkable
class UpdatingCommunicator(Protocol):
    """Communicator that reduces gradients, updates weights and gathers them in one pass."""

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        """Return whether `update` accepts slices of `gradients` and `weights`, two buffers from `allocate`. The same on
        all ranks.

        Collective.
        """

    def update(self, what: WireSignature, gradients: Flat, bounds: Bounds, op: ReduceOp, change: ChunkUpdate) -> None:
        """Reduce this rank's chunk of `gradients`, update its weights by `change`, and write them to every rank.

        All ranks have the new weights when the next call of `update` returns. If `change.last` is True, they have them
        when this call returns. Do not write to `gradients` before that.
        """

    def finish_updates(self) -> bool:
        """Complete the weights of the previous update; call this if no other update follows soon.

        Return False if the weights are complete only after the next barrier. Ranks need not call this at the same time.
        """
