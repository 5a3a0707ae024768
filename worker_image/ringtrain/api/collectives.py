"""The collectives that users call, on arrays of any shape and layout.

All of them are called by every rank of `process_set` (default: the world), in the same order, with the same
`name`, dtype, op and root, and with the same shape where rows may not differ. Ranks that disagree raise
MismatchError, all of them; a rank that is lost makes all others raise PeerLost within the timeout. Nothing
partial is ever returned.

dtypes: float16, bfloat16, float32, float64, int32, int64, uint8, bool. Contributions are folded in rank order,
half precision in float32: the same inputs give the same bits on every rank and every run. A scalar counts as one
row.

The `_async` forms return a Handle at once; they run in the order of their submission. Their arguments must not be
changed before `synchronize`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringtrain.collectives import work
from ringtrain.process_groups.executor import Handle
from ringtrain.process_groups.process_sets import ProcessSet, group_of
from ringtrain.reduction.ops import Average, ReduceOp

Array = NDArray[Any]
Set = ProcessSet | None


def allreduce(x: ArrayLike, op: ReduceOp = Average, name: str | None = None, process_set: Set = None) -> Array:
    """Return the fold of `x` of all ranks, in a new array."""
    return group_of(process_set).call(work.allreduce(x, op, name))


def allreduce_(x: Array, op: ReduceOp = Average, name: str | None = None, process_set: Set = None) -> Array:
    """Fold `x` of all ranks in place, and return it."""
    return group_of(process_set).call(work.allreduce_in_place(x, op, name))


def allreduce_async(
    x: ArrayLike, op: ReduceOp = Average, name: str | None = None, process_set: Set = None
) -> Handle[Array]:
    """Begin `allreduce`."""
    return group_of(process_set).begin(work.allreduce(x, op, name))


def allreduce_async_(
    x: Array, op: ReduceOp = Average, name: str | None = None, process_set: Set = None
) -> Handle[Array]:
    """Begin `allreduce_`."""
    return group_of(process_set).begin(work.allreduce_in_place(x, op, name))


def grouped_allreduce(
    xs: Sequence[ArrayLike], op: ReduceOp = Average, name: str | None = None, process_set: Set = None
) -> list[Array]:
    """Return the fold of each tensor, those of one dtype in one exchange; the bits are those of `allreduce`."""
    return group_of(process_set).call(work.grouped_allreduce(xs, op, name))


def grouped_allreduce_async(
    xs: Sequence[ArrayLike], op: ReduceOp = Average, name: str | None = None, process_set: Set = None
) -> Handle[list[Array]]:
    """Begin `grouped_allreduce`."""
    return group_of(process_set).begin(work.grouped_allreduce(xs, op, name))


def reducescatter(x: ArrayLike, op: ReduceOp = Average, name: str | None = None, process_set: Set = None) -> Array:
    """Return this rank's rows of the fold. Rows are dealt evenly; the first ranks get one more."""
    return grouped_reducescatter([x], op, name, process_set)[0]


def reducescatter_async(
    x: ArrayLike, op: ReduceOp = Average, name: str | None = None, process_set: Set = None
) -> Handle[Array]:
    """Begin `reducescatter`."""
    grouped = work.grouped_reducescatter([x], op, name)
    return group_of(process_set).begin(lambda communicator: grouped(communicator)[0])


def grouped_reducescatter(
    xs: Sequence[ArrayLike], op: ReduceOp = Average, name: str | None = None, process_set: Set = None
) -> list[Array]:
    """Return this rank's rows of the fold of each tensor, all of one dtype in one exchange."""
    return group_of(process_set).call(work.grouped_reducescatter(xs, op, name))


def grouped_reducescatter_async(
    xs: Sequence[ArrayLike], op: ReduceOp = Average, name: str | None = None, process_set: Set = None
) -> Handle[list[Array]]:
    """Begin `grouped_reducescatter`."""
    return group_of(process_set).begin(work.grouped_reducescatter(xs, op, name))


def allgather(x: ArrayLike, name: str | None = None, process_set: Set = None) -> Array:
    """Return the rows of all ranks, in rank order. The number of rows may differ between ranks."""
    return grouped_allgather([x], name, process_set)[0]


def allgather_async(x: ArrayLike, name: str | None = None, process_set: Set = None) -> Handle[Array]:
    """Begin `allgather`."""
    grouped = work.grouped_allgather([x], name)
    return group_of(process_set).begin(lambda communicator: grouped(communicator)[0])


def grouped_allgather(xs: Sequence[ArrayLike], name: str | None = None, process_set: Set = None) -> list[Array]:
    """Return the rows of all ranks for each tensor, in one exchange."""
    return group_of(process_set).call(work.grouped_allgather(xs, name))


def grouped_allgather_async(
    xs: Sequence[ArrayLike], name: str | None = None, process_set: Set = None
) -> Handle[list[Array]]:
    """Begin `grouped_allgather`."""
    return group_of(process_set).begin(work.grouped_allgather(xs, name))


def broadcast(x: ArrayLike, root_rank: int, name: str | None = None, process_set: Set = None) -> Array:
    """Return `x` of world rank `root_rank`. On the root it returns when all others have it."""
    return group_of(process_set).call(work.broadcast(x, root_rank, name))


def broadcast_(x: Array, root_rank: int, name: str | None = None, process_set: Set = None) -> Array:
    """Fill `x` with that of world rank `root_rank`, and return it."""
    return group_of(process_set).call(work.broadcast_in_place(x, root_rank, name))


def broadcast_async(
    x: ArrayLike, root_rank: int, name: str | None = None, process_set: Set = None
) -> Handle[Array]:
    """Begin `broadcast`."""
    return group_of(process_set).begin(work.broadcast(x, root_rank, name))


def broadcast_async_(x: Array, root_rank: int, name: str | None = None, process_set: Set = None) -> Handle[Array]:
    """Begin `broadcast_`."""
    return group_of(process_set).begin(work.broadcast_in_place(x, root_rank, name))


def alltoall(
    x: ArrayLike, splits: ArrayLike | None = None, name: str | None = None, process_set: Set = None
) -> tuple[Array, NDArray[np.int64]]:
    """Deal the rows of `x` out and return (rows from all ranks in rank order, how many came from each).

    `splits`: rows for each rank of the set; by default all get the same number.
    """
    return group_of(process_set).call(work.alltoall(x, splits, name))


def alltoall_async(
    x: ArrayLike, splits: ArrayLike | None = None, name: str | None = None, process_set: Set = None
) -> Handle[tuple[Array, NDArray[np.int64]]]:
    """Begin `alltoall`."""
    return group_of(process_set).begin(work.alltoall(x, splits, name))


def barrier(process_set: Set = None) -> None:
    """Return when every rank has called it."""
    group_of(process_set).call(work.barrier())
