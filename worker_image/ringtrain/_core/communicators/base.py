"""The seam beneath the public collectives: what a way of exchanging tensors has to offer."""

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

    All ranks of the set call the same methods in the same order. `what` is compared between ranks; ranks that mean
    different things raise MismatchError on all of them. Every method raises PeerLost, on all ranks, instead of
    returning something partial. Buffers are 1-d, contiguous and belong to the caller again on return.
    """

    @property
    def ranks(self) -> tuple[int, ...]:
        """World ranks of the set, in the order of their positions."""

    @property
    def position(self) -> int:
        """Of this rank in `ranks`."""

    @property
    def overlaps(self) -> bool:
        """Whether two collectives under way at the same time fill each other's pauses. The same on all ranks.

        In shared memory they would fight for the same cores, and not every MPI library can.
        """

    @property
    def fusion_bytes(self) -> int:
        """Several tensors are copied together until they are this long: more would not pay for the copy."""

    def all_reduce(self, what: WireSignature, source: Flat, target: Flat, op: ReduceOp) -> None:
        """Fold `source` of all ranks into `target`, which may be `source`."""

    def reduce_scatter(self, what: WireSignature, source: Flat, bounds: Bounds, target: Flat, op: ReduceOp) -> None:
        """Fold this rank's chunk into `target` (as long as the chunk; may be the chunk itself)."""

    def all_gather(self, what: WireSignature, buffer: Flat, bounds: Bounds) -> None:
        """Fill `buffer` in place with every rank's chunk."""

    def all_gather_parts(self, what: WireSignature, part: Flat) -> list[Flat]:
        """Return the part of every rank, by position; lengths may differ."""

    def broadcast(self, what: WireSignature, buffer: Flat, root: int) -> None:
        """Fill `buffer` in place with that of the rank at position `root`."""

    def all_to_all(
        self, what: WireSignature, parts: Sequence[Flat], origins: Sequence[int] | None = None
    ) -> list[Flat]:
        """Send `parts[p]` to position p; return what each position sent here.

        `origins`: on all ranks, those that send this one something, where ranks know: only they need a connection.
        """

    def send_receive(self, what: WireSignature, source: Flat, to: int, target: Flat, origin: int) -> None:
        """Send `source` to position `to`, and fill `target` with what position `origin` sends here.

        On all ranks: each gives to one and gets from one.
        """

    def barrier(self, what: WireSignature) -> None:
        """Return when every rank has called it."""

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Return zeros whose collectives may be cheaper than those of other memory. Collective, `nbytes` alike."""

    def close(self) -> None:
        """Give back what the communicator holds; no collective may be under way on this rank."""


@runtime_checkable
class GroupedReducer(Protocol):
    """A `Communicator` to which it is all the same whether a buffer lies in one place."""

    def all_reduce_grouped(self, what: WireSignature, sources: Sequence[Flat], target: Flat, op: ReduceOp) -> None:
        """Fold what `sources` are one after the other into `target`. Each may lie at its own place there."""


# Takes an array, the operation, its name, and whether it is changed in place. Returns what `allreduce` returns, or
# None: another way must be taken, which other ranks need not take. What they exchange and compare is the same.
ShortAllreduce = Callable[[Any, ReduceOp, str | None, bool], Any]


class SharedCommunicatorTurn(Protocol):
    """Who runs a collective. Compiled code (`kernels/native/calls.c`) reads `wanted`, and takes `held` by itself.

    `wanted`: how many have the turn, or wait for it; above 0 for ever once nobody is to have it any more.
    """

    held: threading.Lock
    wanted: int

    def counted(self) -> AbstractContextManager[None]:
        """What compiled code, which took it for the calling thread and passes it on, could not end at once."""


@runtime_checkable
class ShortReducer(Protocol):
    """A `Communicator` that reduces short arrays in less time than it takes to say what they are."""

    def short_allreduce(
        self, meaning: Callable[[Any, ReduceOp, str | None], WireSignature | None], turn: SharedCommunicatorTurn
    ) -> ShortAllreduce | None:
        """Return what reduces an array, by operation and name, in place or not; None: there is no such way.
        What is no `ReduceOp`, and has a meaning, is a meeting without a reduction, of an array without elements.

        It is called again and again. It returns None where `meaning` does, for long arrays, and where anyone else
        has the turn or wants it. Where it has to wait it enters `step_time.REDUCTION`.
        """


@runtime_checkable
class MappingCommunicator(Protocol):
    """A `Communicator` whose ranks all map what `allocate` returns to each of them."""

    def memory_of(self, position: int, buffer: Flat) -> Flat | None:
        """Return what `buffer`, from `allocate`, is on the rank at `position`; None where it is not mapped."""


@runtime_checkable
class MemorySharingCommunicator(Protocol):
    """A `Communicator` for which it matters where a buffer lies."""

    def use_memory_of(self, other: Any) -> None:
        """Take what `allocate` of `other`, of the same kind and ranks, returns or has returned for this one's."""


@runtime_checkable
class UpdatingCommunicator(Protocol):
    """A `Communicator` that reduces, updates and gathers in one go."""

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        """Whether `update` takes slices of these, which `allocate` gave. The same on all ranks. Collective."""

    def update(self, what: WireSignature, gradients: Flat, bounds: Bounds, op: ReduceOp, change: ChunkUpdate) -> None:
        """Fold this rank's chunk of `gradients`, apply `change` to it, and write the weights to every rank.

        They are new on return of the next update, or of this one if it is the last. `gradients` must not be
        written before that.
        """

    def finish_updates(self) -> bool:
        """Make the weights of the update before new now, if no other one follows at once; False: they wait for it.

        Ranks need not agree on when they call this.
        """
