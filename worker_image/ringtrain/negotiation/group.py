"""What the named queue needs of a set of ranks: a small seam over the ring.

`memory_groups()` is the same on threads of one process; the tests run against both.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Group(Protocol):
    """The ranks of one process set. Every rank calls the same methods in the same order."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """World ranks of the members, ascending."""

    @property
    def rank(self) -> int:
        """World rank of this process."""

    def exchange(self, message: bytes) -> list[bytes]:
        """Return every member's `message`, in the order of `ranks`."""

    def allreduce(self, arrays: Sequence[Array], op: str) -> list[Array]:
        """Return each array reduced over the members. `op`: Sum, Average, Min, Max or Product."""

    def allgather(self, array: Array, rows: int) -> Array:
        """Return every member's rows, one below the other: `rows` of them in total."""

    def broadcast(self, array: Array, root: int) -> Array:
        """Return the array of world rank `root`."""

    def alltoall(self, array: Array, splits: Sequence[int]) -> tuple[Array, list[int]]:
        """Send `splits[i]` rows to member i; return the rows received and how many came from each member."""

    def reducescatter(self, array: Array, op: str) -> Array:
        """Return this member's rows of the reduced array; the first members have one more where rows do not
        divide.
        """


def rows_of(rows: int, parts: int) -> list[int]:
    """Cut `rows` into `parts` that differ by at most one, the longer ones first."""
    return [rows // parts + (index < rows % parts) for index in range(parts)]


def as_array(message: bytes) -> Array:
    return np.frombuffer(message, np.uint8)
