"""What optimizer, input and checkpoints need of the other ranks: one small seam.

`world_group()` is the ring; the tests run the same code on threads in one process.
"""

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Flat = NDArray[Any]


class Pending(Protocol):
    """A collective under way."""

    def wait(self) -> object:
        """Return when the collective is done on this rank; raise what made it fail."""


class Group(Protocol):
    """The ranks that train one model. Every rank calls the same collectives in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def reduce_scatter(self, buffer: Flat, bounds: Sequence[int], average: bool) -> Pending:
        """Leave the sum (or mean) over ranks of `buffer[bounds[r]:bounds[r + 1]]` on rank r, in place.

        Every element is the left fold over ranks in rank order, so its bits do not depend on `bounds`.
        """

    def all_gather(self, buffer: Flat, bounds: Sequence[int]) -> Pending:
        """Give every rank what rank r holds in `buffer[bounds[r]:bounds[r + 1]]`, in place."""

    def broadcast(self, buffer: Flat) -> None:
        """Overwrite `buffer` (1-d) with rank 0's on every rank."""

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's JSON-safe `value` on every rank."""

    def allgather_object(self, value: Any) -> list[Any]:
        """Return every rank's JSON-safe `value`, by rank."""


class RingGroup:
    """The world of `ringtrain.init()`."""

    def __init__(self) -> None:
        rt = _ringtrain()  # on use, because ringtrain itself imports this package

        self.rank: int = rt.rank()
        self.size: int = rt.size()

    def reduce_scatter(self, buffer: Flat, bounds: Sequence[int], average: bool) -> Pending:
        rt = _ringtrain()
        op = rt.Average if average else rt.Sum
        pending: Pending = rt.collectives.flat.reduce_scatter_async(buffer, bounds, op=op)
        return pending

    def all_gather(self, buffer: Flat, bounds: Sequence[int]) -> Pending:
        rt = _ringtrain()
        pending: Pending = rt.collectives.flat.all_gather_async(buffer, bounds)
        return pending

    def broadcast(self, buffer: Flat) -> None:
        rt = _ringtrain()

        buffer[:] = rt.broadcast(np.ascontiguousarray(buffer), 0)

    def broadcast_object(self, value: Any) -> Any:
        rt = _ringtrain()

        return rt.broadcast_object(value, 0)

    def allgather_object(self, value: Any) -> list[Any]:
        rt = _ringtrain()

        return list(rt.allgather_object(value))


def _ringtrain() -> Any:
    return importlib.import_module("ringtrain")


def world_group() -> Group:
    """Return the world of `ringtrain.init()`; raise NotInitializedError before it."""
    return RingGroup()
