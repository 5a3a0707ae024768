"""What optimizer, input and checkpoints need of the other ranks: one small seam.

`world_group()` is the ring; the tests run the same code on threads in one process.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from ringtrain.collectives import api, flat, objects
from ringtrain.communicators.base import Communicator
from ringtrain.kernels.update import ChunkUpdate
from ringtrain.process_groups import context
from ringtrain.process_groups.executor import Engine
from ringtrain.reduction import ops
from ringtrain.wire.signature import Signature

Flat = NDArray[Any]


class Pending(Protocol):
    """A collective under way."""

    def wait(self) -> object:
        """Return when the collective is done on this rank; raise what made it fail."""


class Received(Protocol):
    """An exchange under way."""

    def wait(self) -> list[Flat]:
        """Return what came, by rank; raise what made it fail."""


class Gatherer(Protocol):
    """All-gathers among the ranks of a group that run beside the group's other collectives."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_gather(self, buffer: Flat, bounds: Sequence[int]) -> Pending:
        """Give every rank what rank r holds in `buffer[bounds[r]:bounds[r + 1]]`, in place."""


class Group(Protocol):
    """The ranks that train one model. Every rank calls the same collectives in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def allocate(self, length: int, dtype: Any) -> Flat:
        """Return zeros for buffers of the collectives below, as all ranks do with the same arguments."""

    def reduce_scatter(self, buffer: Flat, bounds: Sequence[int], average: bool) -> Pending:
        """Leave the sum (or mean) over ranks of `buffer[bounds[r]:bounds[r + 1]]` on rank r, in place.

        Every element is the left fold over ranks in rank order, so its bits do not depend on `bounds`.
        """

    def all_gather(self, buffer: Flat, bounds: Sequence[int]) -> Pending:
        """Give every rank what rank r holds in `buffer[bounds[r]:bounds[r + 1]]`, in place."""

    def beside(self) -> Gatherer | None:
        """Return a second lane, in which what is begun need not wait for what was begun here. Collective.

        None where that does not pay.
        """

    def all_to_all(self, parts: Sequence[Flat]) -> Received:
        """Send `parts[r]` (1-d) to rank r; `wait` returns what each rank sent here, by rank."""

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        """Whether `update` takes slices of these, which `allocate` gave. The same on all ranks. Collective."""

    def update(self, gradients: Flat, bounds: Sequence[int], average: bool, change: ChunkUpdate) -> None:
        """Reduce rank r's chunk of `gradients` on rank r, apply `change` to it, and write the weights to all.

        The weights of all ranks are new when the next update, or this one if it is the last, returns; `gradients`
        must not be written before that. The same bits as `reduce_scatter`, the update, `all_gather`.
        """

    def finish_updates(self) -> bool:
        """Make the weights of the update before new now, no other one follows at once; False: they wait."""

    def broadcast(self, buffer: Flat) -> None:
        """Overwrite `buffer` (1-d) with rank 0's on every rank."""

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's JSON-safe `value` on every rank."""

    def allgather_object(self, value: Any) -> list[Any]:
        """Return every rank's JSON-safe `value`, by rank."""


class RingGroup:
    """The world of `ringtrain.init()`."""

    def __init__(self) -> None:
        self.rank: int = context.rank()
        self.size: int = context.size()

    def allocate(self, length: int, dtype: Any) -> Flat:
        return flat.allocate(length, dtype)

    def reduce_scatter(self, buffer: Flat, bounds: Sequence[int], average: bool) -> Pending:
        return flat.reduce_scatter_async(buffer, bounds, ops.Average if average else ops.Sum)

    def all_gather(self, buffer: Flat, bounds: Sequence[int]) -> Pending:
        return flat.all_gather_async(buffer, bounds)

    def beside(self) -> Gatherer | None:
        lane = context.current().add_lane()
        return None if lane is None else _Lane(*lane)

    def all_to_all(self, parts: Sequence[Flat]) -> Received:
        return flat.all_to_all_async(parts)

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        return flat.can_update(gradients, weights)

    def update(self, gradients: Flat, bounds: Sequence[int], average: bool, change: ChunkUpdate) -> None:
        flat.update(gradients, bounds, ops.Average if average else ops.Sum, change)

    def finish_updates(self) -> bool:
        return flat.finish_updates()

    def broadcast(self, buffer: Flat) -> None:
        api.broadcast_(buffer, 0)

    def broadcast_object(self, value: Any) -> Any:
        return objects.broadcast_object(value, 0)

    def allgather_object(self, value: Any) -> list[Any]:
        return objects.allgather_object(value)


class _Lane:
    """An engine and a communicator of their own."""

    def __init__(self, engine: Engine, communicator: Communicator) -> None:
        self._engine, self._communicator = engine, communicator
        self.rank = communicator.position
        self.size = len(communicator.ranks)

    def all_gather(self, buffer: Flat, bounds: Sequence[int]) -> Pending:
        ring, what = self._communicator, Signature("all_gather")
        return self._engine.submit(lambda: ring.all_gather(what, buffer, tuple(bounds)))


def world_group() -> Group:
    """Return the world of `ringtrain.init()`; raise NotInitializedError before it."""
    return RingGroup()
