"""Interfaces of communicators, which implement the public collectives."""

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
        """Return the world ranks of the set, in the order of their positions."""

    @property
    def position(self) -> int:
        """Return the index of this rank in `ranks`."""

    @property
    def overlaps(self) -> bool:
        """Return whether two concurrent collectives use each other's idle time. The same on all ranks.

        In shared memory they would compete for the same cores, and not every MPI library supports it.
        """

    @property
    def fusion_bytes(self) -> int:
        """Return the size up to which several tensors are copied into one buffer; above it the copy costs more than it
        saves.
        """

    def all_reduce(self, what: WireSignature, source: Flat, target: Flat, op: ReduceOp) -> None:
        """Reduce `source` of all ranks into `target`, which may be `source`."""

    def reduce_scatter(self, what: WireSignature, source: Flat, bounds: Bounds, target: Flat, op: ReduceOp) -> None:
        """Reduce this rank's chunk into `target` (as long as the chunk; may be the chunk itself)."""

    def all_gather(self, what: WireSignature, buffer: Flat, bounds: Bounds) -> None:
        """Fill `buffer` in place with every rank's chunk."""

    def all_gather_parts(self, what: WireSignature, part: Flat) -> list[Flat]:
        """Return the part of every rank, by position; lengths may differ."""

    def broadcast(self, what: WireSignature, buffer: Flat, root: int) -> None:
        """Fill `buffer` in place with the buffer of the rank at position `root`."""

    def all_to_all(
        self, what: WireSignature, parts: Sequence[Flat], origins: Sequence[int] | None = None
    ) -> list[Flat]:
        """Send `parts[p]` to position p; return the received parts by position.

        `origins`: positions from which this rank receives data, if all ranks know theirs; only these need a connection.
        """

    def send_receive(self, what: WireSignature, source: Flat, to: int, target: Flat, origin: int) -> None:
        """Send `source` to position `to`, and fill `target` with data from position `origin`.

        Every rank sends to one and receives from one.
        """

    def barrier(self, what: WireSignature) -> None:
        """Wait until every rank has called it."""

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Return a zeroed buffer that may make collectives faster than other memory.

        Collective, with equal `nbytes`.
        """

    def close(self) -> None:
        """Release the communicator's resources; no collective may be in progress on this rank."""


@runtime_checkable
class GroupedReducer(Protocol):
    """`Communicator` that reduces buffers in several places as fast as one buffer."""

    def all_reduce_grouped(self, what: WireSignature, sources: Sequence[Flat], target: Flat, op: ReduceOp) -> None:
        """Reduce the concatenation of `sources` into `target`. Each may already be at its place in `target`."""


# Arguments: an array, the operation, its name, and whether it is changed in place. Returns the result of `allreduce`,
# or None: the caller must then use the normal path. Other ranks may use either; both exchange and compare the same
# data.
ShortAllreduce = Callable[[Any, ReduceOp, str | None, bool], Any]


class SharedCommunicatorTurn(Protocol):
    """Lock of the right to run a collective. Compiled code (`kernels/native/calls.c`) reads `wanted` and takes `held`.

    `wanted`: number of threads that own it or wait for it; stays above 0 after it was closed.
    """

    held: threading.Lock
    wanted: int

    def counted(self) -> AbstractContextManager[None]:
        """Count the calling thread as waiting, for a collective that compiled code began under the lock and has not
        ended.
        """


@runtime_checkable
class ShortReducer(Protocol):
    """`Communicator` with a fast path for short arrays, which skips building their signature."""

    def short_allreduce(
        self, meaning: Callable[[Any, ReduceOp, str | None], WireSignature | None], turn: SharedCommunicatorTurn
    ) -> ShortAllreduce | None:
        """Return the fast allreduce function, or None if this communicator has no fast path.

        The function reduces an array by operation and name, in place or not. If `op` is not a ReduceOp but `meaning`
        returns a signature, the call is a barrier on a zero-length array. The function returns None if the array is
        long, if `meaning` returns None, or if another thread has `turn` or waits for it. While it waits for other
        ranks, the time counts as `step_time.REDUCTION`.
        """


@runtime_checkable
class MappingCommunicator(Protocol):
    """`Communicator` in which every rank maps the buffers that `allocate` returns on all ranks."""

    def memory_of(self, position: int, buffer: Flat) -> Flat | None:
        """Return the buffer of the rank at `position` that corresponds to `buffer`, from `allocate`; None if not
        mapped.
        """


@runtime_checkable
class MemorySharingCommunicator(Protocol):
    """`Communicator` whose speed depends on the location of a buffer."""

    def use_memory_of(self, other: Any) -> None:
        """Treat buffers from `allocate` of `other`, of the same kind and ranks, like this one's, past and future
        ones.
        """


@runtime_checkable
class UpdatingCommunicator(Protocol):
    """`Communicator` that reduces, updates and gathers in one pass."""

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        """Return whether `update` accepts slices of these buffers from `allocate`. The same on all ranks.

        Collective.
        """

    def update(self, what: WireSignature, gradients: Flat, bounds: Bounds, op: ReduceOp, change: ChunkUpdate) -> None:
        """Reduce this rank's chunk of `gradients`, apply `change` to it, and write the weights to every rank.

        They are new on return of the next update, or of this one if it is the last. Do not write to `gradients` before
        that.
        """

    def finish_updates(self) -> bool:
        """Complete the weights of the previous update now, if no update follows at once.

        Return False if they still wait.

        Ranks need not call this at the same time.
        """
