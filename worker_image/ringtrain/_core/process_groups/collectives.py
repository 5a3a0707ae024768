"""Public collective functions, such as `allreduce`, on arrays of any shape and memory layout.

Every rank of `process_set`, by default of the world, makes the same calls in the same order, with the same `name`,
dtype, `op` and `root_rank`, and with the same shape unless the function allows different rows. `name` appears in
messages and in the timeline, and is compared between ranks.

* **dtypes**: float16, bfloat16, float32, float64, int32, int64, uint8, bool. `Average` and `Adasum` accept only
  floating types. A scalar counts as an array of one row.
* **Order**: all operations but Adasum fold in rank order, half precision in float32. Between more than 12 pods of
  several ranks, a pod's ranks are folded in rank order, and the pods in pairs; more than 64 ranks without shared memory
  are folded in pairs. Equal inputs give bitwise equal results on every rank and in every run.
* **Errors**, of every function here: `NotInitializedError` without a world. `ConfigurationError` for a wrong argument,
  or for a process set without this rank. `MismatchError` on all ranks if ranks call different collectives or pass
  different values of arguments that must be equal. `PeerLost` on all other ranks if a rank is lost: a process that does
  not answer within `RINGTRAIN_TIMEOUT` seconds, or does not call the collective within `RINGTRAIN_STALL_TIMEOUT`
  seconds. No function returns a partial result.

A function whose name has `_async` returns a `Handle` at once. These collectives run in the order of the calls. Do not
change their arguments before `synchronize`, which returns the result or raises the error.

The exchange is decision 1 in docs/decisions: a ring allreduce (Patarasuk & Yuan 2009) whose steps are shifts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringtrain._core.process_groups import work
from ringtrain._core.process_groups.context import current
from ringtrain._core.process_groups.executor import Handle
from ringtrain._core.process_groups.process_sets import ProcessSet, group_of
from ringtrain._core.reduction.ops import Average, ReduceOp
from ringtrain._core.wire.objects import check_headers, is_wire_refusal, object_header, pack_object, unpack_object
from ringtrain.errors import ConfigurationError

Array = NDArray[Any]


def allreduce(
    x: ArrayLike, op: ReduceOp = Average, name: str | None = None, process_set: ProcessSet | None = None
) -> Array:
    """Return the reduction of `x` over all ranks, in a new array of `x`'s shape and dtype.

    `x`: the same shape and dtype on every rank; it is not changed. `op`: `Average`, `Sum`, `Min`, `Max`, `Product` or
    `Adasum` (Maleki et al. 2020). A sum or product of integers that overflows its dtype wraps around, as in numpy and
    MPI: 200 and 100 as uint8 are 44.
    """
    group = group_of(process_set)
    reduced = group.short_allreduce(x, op, name, False)
    return group.call(work.allreduce(x, op, name)) if reduced is None else reduced


def allreduce_(
    x: Array, op: ReduceOp = Average, name: str | None = None, process_set: ProcessSet | None = None
) -> Array:
    """Overwrite `x` with the reduction of `x` over all ranks, and return `x`.

    Does the same as `allreduce`, without a new array. `x`: a writable numpy array. Views with strides are allowed.
    """
    group = group_of(process_set)
    reduced = group.short_allreduce(x, op, name, True)
    return group.call(work.allreduce_in_place(x, op, name)) if reduced is None else reduced


def allreduce_async(
    x: ArrayLike, op: ReduceOp = Average, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[Array]:
    """Begin `allreduce`; `synchronize` on the returned handle returns the new array.

    Do not write to `x` before `synchronize`: the values may be part of the sum, or not.
    """
    return group_of(process_set).begin(work.allreduce(x, op, name))


def allreduce_async_(
    x: Array, op: ReduceOp = Average, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[Array]:
    """Begin `allreduce_`; the handle's result is `x`. Do not read `x` before `synchronize` returns."""
    return group_of(process_set).begin(work.allreduce_in_place(x, op, name))


def grouped_allreduce(
    xs: Sequence[ArrayLike], op: ReduceOp = Average, name: str | None = None, process_set: ProcessSet | None = None
) -> list[Array]:
    """Return the reduction of each array of `xs` over all ranks, as new arrays in the same order.

    `xs`: equally many arrays on every rank, each with its own shape and dtype. Arrays of one dtype are sent in one
    exchange; results are bitwise equal to `allreduce` of each.
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

    `x`: shape `(rows, ...)`, the same on every rank. Rank r of n gets `rows // n` rows, the first `rows % n` ranks one
    more, in rank order. `op`: the same values as for `allreduce`.
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

    `xs`: equally many arrays on every rank. Arrays of one dtype are sent in one exchange; rows are divided as in
    `reducescatter`.
    """
    return group_of(process_set).call(work.grouped_reducescatter(xs, op, name))


def grouped_reducescatter_async(
    xs: Sequence[ArrayLike], op: ReduceOp = Average, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[list[Array]]:
    """Begin `grouped_reducescatter`; the handle's result is the list of arrays."""
    return group_of(process_set).begin(work.grouped_reducescatter(xs, op, name))


def allgather(x: ArrayLike, name: str | None = None, process_set: ProcessSet | None = None) -> Array:
    """Return the rows of `x` of all ranks, concatenated in rank order, in a new array.

    `x`: shape `(rows, ...)`; the number of rows may differ between ranks and may be 0, the other dimensions and the
    dtype must be equal. The result has shape `(sum of rows, ...)`.
    """
    return grouped_allgather([x], name, process_set)[0]


def allgather_async(x: ArrayLike, name: str | None = None, process_set: ProcessSet | None = None) -> Handle[Array]:
    """Begin `allgather`; the handle's result is the array of all rows."""
    grouped = work.grouped_allgather([x], name)
    return group_of(process_set).begin(lambda communicator: grouped(communicator)[0])


def grouped_allgather(
    xs: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet | None = None
) -> list[Array]:
    """Return the result of `allgather` for each array of `xs`, in one exchange."""
    return group_of(process_set).call(work.grouped_allgather(xs, name))


def grouped_allgather_async(
    xs: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[list[Array]]:
    """Begin `grouped_allgather`; the handle's result is the list of arrays."""
    return group_of(process_set).begin(work.grouped_allgather(xs, name))


def broadcast(x: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None) -> Array:
    """Return `x` of rank `root_rank`, in a new array.

    `x`: the same shape and dtype on every rank; other ranks' values are ignored. `root_rank`: a rank of the world, also
    in a process set. On the root the function returns when all other ranks have the values.
    """
    return group_of(process_set).call(work.broadcast(x, root_rank, name))


def broadcast_(x: Array, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None) -> Array:
    """Overwrite `x` with `x` of rank `root_rank`, and return `x`."""
    return group_of(process_set).call(work.broadcast_in_place(x, root_rank, name))


def broadcast_async(
    x: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[Array]:
    """Begin `broadcast`; the handle's result is the new array."""
    return group_of(process_set).begin(work.broadcast(x, root_rank, name))


def broadcast_async_(
    x: Array, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[Array]:
    """Begin `broadcast_`; the handle's result is `x`. Do not read `x` before `synchronize` returns."""
    return group_of(process_set).begin(work.broadcast_in_place(x, root_rank, name))


def alltoall(
    x: ArrayLike, splits: ArrayLike | None = None, name: str | None = None, process_set: ProcessSet | None = None
) -> tuple[Array, NDArray[np.int64]]:
    """Send each rank its rows of `x`. Return the received rows, and the number of rows received from each rank.

    `x`: shape `(rows, ...)`; the number of rows may differ between ranks. `splits`: the number of rows for each rank of
    the set, in rank order, with the sum `rows`; the default is equal numbers, which requires that the number of ranks
    divides `rows`. Returns an array of shape `(rows received, ...)` in rank order, and an int64 array of shape
    `(ranks,)`.
    """
    return group_of(process_set).call(work.alltoall(x, splits, name))


def alltoall_async(
    x: ArrayLike, splits: ArrayLike | None = None, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle[tuple[Array, NDArray[np.int64]]]:
    """Begin `alltoall`; the handle's result is the pair that `alltoall` returns."""
    return group_of(process_set).begin(work.alltoall(x, splits, name))


def barrier(process_set: ProcessSet | None = None) -> None:
    """Wait until every rank of `process_set` (default: all ranks) has called `barrier`."""
    group_of(process_set).barrier()


def broadcast_object(
    value: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    allow_pickle: bool = False,
) -> Any:
    """Return the `value` of world rank `root_rank`; the values that other ranks pass are ignored.

    Supported types: None, booleans, numbers, strings, bytes, lists, tuples, sets, dicts, numpy arrays, scalars and
    dtypes, paths, dates and times, ranges, namespaces, dataclasses and named tuples. Other types need
    `allow_pickle=True` on every rank. Every rank then trusts the root, because unpickling runs code that the root
    chose. Raises ConfigurationError, on every rank, for an unsupported value, and the errors of all collectives.
    """
    group = group_of(process_set)
    ranks = group.ranks
    if root_rank not in ranks:
        raise ConfigurationError(f"root_rank is {root_rank}; expected one of the ranks {list(ranks)}")
    is_root = current().config.place.rank == root_rank
    message = pack_object(value, allow_pickle) if is_root else b""
    own = object_header(message, root_rank, allow_pickle)
    (rows,) = group.call(work.grouped_allgather([own], _object_of_collective(name, "length")))
    length = check_headers(rows, ranks, "broadcast_object")[ranks.index(root_rank)]
    buffer = np.frombuffer(message, np.uint8) if is_root else np.empty(length, np.uint8)
    received = group.call(work.broadcast(buffer, root_rank, _object_of_collective(name, "value")))
    return (
        value
        if is_root and not is_wire_refusal(message)
        else unpack_object(received.tobytes(), root_rank, allow_pickle)
    )


def allgather_object(
    value: Any, name: str | None = None, process_set: ProcessSet | None = None, *, allow_pickle: bool = False
) -> list[Any]:
    """Return a list with the `value` of every rank, in rank order.

    Supported types, `allow_pickle` and errors are the same as for `broadcast_object`.
    """
    group = group_of(process_set)
    ranks = group.ranks
    message = pack_object(value, allow_pickle)
    both: list[NDArray[Any]] = [object_header(message, 0, allow_pickle), np.frombuffer(message, np.uint8)]
    rows, data = group.call(work.grouped_allgather(both, _object_of_collective(name, "object")))
    lengths = check_headers(rows, ranks, "allgather_object")
    parts = np.split(data, np.cumsum(lengths)[:-1])
    return [unpack_object(part.tobytes(), rank, allow_pickle) for rank, part in zip(ranks, parts, strict=True)]


def _object_of_collective(name: str | None, what: str) -> str | None:
    return None if name is None else f"{name}.{what}"
