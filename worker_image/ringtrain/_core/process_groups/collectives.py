"""The collectives that users call, on arrays of any shape and memory layout.

Every rank of `process_set` (None: of the world) makes the same calls in the same order, with the same `name`,
dtype, `op` and `root_rank`, and with the same shape unless the function says that rows may differ. `name` stands
in messages and in the timeline, and is compared between ranks.

* **dtypes**: float16, bfloat16, float32, float64, int32, int64, uint8, bool. `Average` and `Adasum` take
  floating types only. A scalar counts as an array of one row.
* **Order**: all operations but Adasum fold in rank order, half precision in float32. Between more than 12 pods
  of several ranks, a pod's ranks are folded in rank order, and the pods in pairs; more than 64 ranks that share
  no memory are folded in pairs. The same inputs give the same bits on every rank and in every run.
* **Errors**, of every function here: `NotInitializedError` without a world. `ConfigurationError` for an argument
  that is wrong, or for a process set without this rank. `MismatchError` on all ranks when ranks call different
  collectives or differ in what must be the same. `PeerLost` on all other ranks when a rank is lost: a process
  that does not answer within `RINGTRAIN_TIMEOUT` seconds, or does not come within `RINGTRAIN_STALL_TIMEOUT`
  seconds. No function returns a partial result.

A function whose name has `_async` returns a `Handle` at once. Collectives begun this way run in the order of the
calls. Their arguments must not be changed before `synchronize`, which returns the result or raises the error.

The exchange is decision 1 in docs/decisions: a ring allreduce (Patarasuk & Yuan 2009) whose steps are shifts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringtrain._core.process_groups import work
from ringtrain._core.process_groups.group import Handle
from ringtrain._core.process_groups.process_sets import ProcessSet, group_of
from ringtrain._core.reduction.ops import Average, ReduceOp

Array = NDArray[Any]


def allreduce(
    x: ArrayLike, op: ReduceOp = Average, name: str | None = None, process_set: ProcessSet | None = None
) -> Array:
    """Return the reduction of `x` over all ranks, in a new array of `x`'s shape and dtype.

    `x`: the same shape and dtype on every rank; it is not changed. `op`: `Average`, `Sum`, `Min`, `Max`,
    `Product` or `Adasum` (Maleki et al. 2020). A sum or product of integers that its dtype can't hold wraps
    around, as numpy's and MPI's do: 200 and 100 as uint8 are 44.
    """
    group = group_of(process_set)
    reduced = group.short_allreduce(x, op, name, False)
    return group.call(work.allreduce(x, op, name)) if reduced is None else reduced


def allreduce_(
    x: Array, op: ReduceOp = Average, name: str | None = None, process_set: ProcessSet | None = None
) -> Array:
    """Overwrite `x` with the reduction of `x` over all ranks, and return `x`. As `allreduce`, without a new
    array.

    `x`: a numpy array that can be written. Views with strides are allowed.
    """
    group = group_of(process_set)
    reduced = group.short_allreduce(x, op, name, True)
    return group.call(work.allreduce_in_place(x, op, name)) if reduced is None else reduced


def allreduce_async(
    x: ArrayLike, op: ReduceOp = Average, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[Array]:
    """Begin `allreduce`; the handle's result is what `allreduce` returns.

    `x` is read until then: what is written to it meanwhile may be summed, or not.
    """
    return group_of(process_set).begin(work.allreduce(x, op, name))


def allreduce_async_(
    x: Array, op: ReduceOp = Average, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[Array]:
    """Begin `allreduce_`; the handle's result is `x`, whose content is undefined until then."""
    return group_of(process_set).begin(work.allreduce_in_place(x, op, name))


def grouped_allreduce(
    xs: Sequence[ArrayLike], op: ReduceOp = Average, name: str | None = None, process_set: ProcessSet | None = None
) -> list[Array]:
    """Return the reduction of each array of `xs` over all ranks, as new arrays in the same order.

    `xs`: as many arrays on every rank, each with its own shape and dtype. Arrays of one dtype travel in one
    exchange; the bits are those of `allreduce` of each.
    """
    return group_of(process_set).call(work.grouped_allreduce(xs, op, name))


def grouped_allreduce_async(
    xs: Sequence[ArrayLike], op: ReduceOp = Average, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[list[Array]]:
    """Begin `grouped_allreduce`; the handle's result is the list of arrays."""
    return group_of(process_set).begin(work.grouped_allreduce(xs, op, name))


def reducescatter(
    x: ArrayLike, op: ReduceOp = Average, name: str | None = None, process_set: ProcessSet | None = None
) -> Array:
    """Return this rank's rows of the reduction of `x` over all ranks, in a new array.

    `x`: shape `(rows, ...)`, the same on every rank. Rank r of n gets `rows // n` rows, the first `rows % n`
    ranks one more, in rank order. `op`: as in `allreduce`.
    """
    return grouped_reducescatter([x], op, name, process_set)[0]


def reducescatter_async(
    x: ArrayLike, op: ReduceOp = Average, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[Array]:
    """Begin `reducescatter`; the handle's result is this rank's rows."""
    grouped = work.grouped_reducescatter([x], op, name)
    return group_of(process_set).begin(lambda communicator: grouped(communicator)[0])


def grouped_reducescatter(
    xs: Sequence[ArrayLike], op: ReduceOp = Average, name: str | None = None, process_set: ProcessSet | None = None
) -> list[Array]:
    """Return this rank's rows of the reduction of each array of `xs`, as new arrays in the same order.

    `xs`: as many arrays on every rank. Arrays of one dtype travel in one exchange; rows are dealt as in
    `reducescatter`.
    """
    return group_of(process_set).call(work.grouped_reducescatter(xs, op, name))


def grouped_reducescatter_async(
    xs: Sequence[ArrayLike], op: ReduceOp = Average, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[list[Array]]:
    """Begin `grouped_reducescatter`; the handle's result is the list of arrays."""
    return group_of(process_set).begin(work.grouped_reducescatter(xs, op, name))


def allgather(x: ArrayLike, name: str | None = None, process_set: ProcessSet | None = None) -> Array:
    """Return the rows of `x` of all ranks, one rank after the other in rank order, in a new array.

    `x`: shape `(rows, ...)`; the number of rows may differ between ranks and may be 0, the other dimensions and
    the dtype are the same. The result has shape `(sum of rows, ...)`.
    """
    return grouped_allgather([x], name, process_set)[0]


def allgather_async(x: ArrayLike, name: str | None = None, process_set: ProcessSet | None = None) -> Handle[Array]:
    """Begin `allgather`; the handle's result is the array of all rows."""
    grouped = work.grouped_allgather([x], name)
    return group_of(process_set).begin(lambda communicator: grouped(communicator)[0])


def grouped_allgather(
    xs: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet | None = None
) -> list[Array]:
    """Return the rows of all ranks for each array of `xs`, in one exchange: `allgather` of each."""
    return group_of(process_set).call(work.grouped_allgather(xs, name))


def grouped_allgather_async(
    xs: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[list[Array]]:
    """Begin `grouped_allgather`; the handle's result is the list of arrays."""
    return group_of(process_set).begin(work.grouped_allgather(xs, name))


def broadcast(x: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None) -> Array:
    """Return `x` of rank `root_rank`, in a new array.

    `x`: the same shape and dtype on every rank; only the root's values count. `root_rank`: a rank of the world,
    also in a process set. On the root the function returns when all other ranks have the values.
    """
    return group_of(process_set).call(work.broadcast(x, root_rank, name))


def broadcast_(x: Array, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None) -> Array:
    """Overwrite `x` with `x` of rank `root_rank`, and return `x`. As `broadcast`, without a new array."""
    return group_of(process_set).call(work.broadcast_in_place(x, root_rank, name))


def broadcast_async(
    x: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[Array]:
    """Begin `broadcast`; the handle's result is the new array."""
    return group_of(process_set).begin(work.broadcast(x, root_rank, name))


def broadcast_async_(
    x: Array, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[Array]:
    """Begin `broadcast_`; the handle's result is `x`, whose content is undefined until then."""
    return group_of(process_set).begin(work.broadcast_in_place(x, root_rank, name))


def alltoall(
    x: ArrayLike, splits: ArrayLike | None = None, name: str | None = None, process_set: ProcessSet | None = None
) -> tuple[Array, NDArray[np.int64]]:
    """Send each rank its rows of `x`; return the rows that came from all ranks, and how many came from each.

    `x`: shape `(rows, ...)`; the number of rows may differ between ranks. `splits`: how many rows each rank of
    the set gets, in rank order, together `rows`; None: every rank the same number, which must divide `rows`.
    Returns an array of shape `(rows received, ...)` in rank order, and an int64 array of shape `(ranks,)`.
    """
    return group_of(process_set).call(work.alltoall(x, splits, name))


def alltoall_async(
    x: ArrayLike, splits: ArrayLike | None = None, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[tuple[Array, NDArray[np.int64]]]:
    """Begin `alltoall`; the handle's result is the pair that `alltoall` returns."""
    return group_of(process_set).begin(work.alltoall(x, splits, name))


def barrier(process_set: ProcessSet | None = None) -> None:
    """Return when every rank of the set has called `barrier`."""
    group_of(process_set).barrier()
