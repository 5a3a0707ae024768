"""Named collectives on numpy arrays, and their gradients: for frameworks that hand over arrays and wait."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ringtrain._core.negotiation.execution import request_dtypes_error
from ringtrain._core.negotiation.queues import name_for, queue_of
from ringtrain._core.negotiation.request import (
    KNOWN_MAX,
    CollectiveKind,
    NamedRequest,
    described,
    request_splits_error,
    scalar_error,
)
from ringtrain._core.process_groups.process_sets import ProcessSet, members
from ringtrain._core.process_groups.tensors import Array
from ringtrain._core.reduction.arithmetic import adasum_error, scaled
from ringtrain._core.reduction.ops import ReduceOp, chosen_reduction_op, only_sums
from ringtrain._core.wire.dtypes import name_of
from ringtrain.step_time import REDUCTION


@dataclass(frozen=True)
class NamedReduction:
    """How arrays become one. `op`: a name of `ringtrain.ReduceOp`."""

    op: str
    process_set: ProcessSet
    prescale: float = 1.0
    postscale: float = 1.0

    @classmethod
    def of(
        cls, op: Any, average: bool | None, prescale: float, postscale: float, process_set: ProcessSet
    ) -> NamedReduction:
        """What the arguments of an allreduce ask for. Raises ConfigurationError."""
        return _named_reduction(chosen_reduction_op(op, average), float(prescale), float(postscale), process_set)

    @classmethod
    def of_sums(
        cls, series: str, op: Any, prescale: float, postscale: float, process_set: ProcessSet
    ) -> NamedReduction:
        """The same for `series`, which has Average and Sum alone."""
        return _named_reduction(
            only_sums(chosen_reduction_op(op), series), float(prescale), float(postscale), process_set
        )

    def request(self, name: str, kind: CollectiveKind = CollectiveKind.ALLREDUCE) -> NamedRequest:
        return _named_request(self, name, kind)


@functools.lru_cache(maxsize=KNOWN_MAX)  # they come back every step
def _named_reduction(op: ReduceOp, prescale: float, postscale: float, process_set: ProcessSet) -> NamedReduction:
    return NamedReduction(op.value, process_set, prescale, postscale)


@functools.lru_cache(maxsize=KNOWN_MAX)
def _named_request(how: NamedReduction, name: str, kind: CollectiveKind) -> NamedRequest:
    return NamedRequest(kind, name, op=how.op, prescale=float(how.prescale), postscale=float(how.postscale))


def run_named_request(
    request: NamedRequest, arrays: Sequence[Array], process_set: ProcessSet, error: str = ""
) -> list[Array]:
    """Run `request` on `arrays` and return its results. `error`: why this rank's arguments are wrong, if they
    are.
    """
    return list(named_result_of(begin_named_request(request, arrays, process_set, error)))


def begin_named_request(
    request: NamedRequest, arrays: Sequence[Array], process_set: ProcessSet, error: str = ""
) -> Any:
    """Begin `request`; return its future."""
    held = [np.asarray(array) for array in arrays]
    dtypes, shapes = tuple(name_of(array.dtype) for array in held), tuple(array.shape for array in held)
    full = described(request, dtypes, shapes, request.device)
    if error := error or request_dtypes_error(full.kind, full.dtypes, full.op):
        full = replace(full, error=error)
    return queue_of(process_set).submit(full, lambda: held)


def named_result_of(begun: Any) -> Any:
    """Wait for the future that a function of this file has returned."""
    if begun.done():
        return begun.result()
    with REDUCTION:
        return begun.result()


def allreduce(arrays: Sequence[Array], how: NamedReduction, name: str | None, series: str = "allreduce") -> list[Array]:
    """Return `arrays` reduced, as one collective."""
    error = adasum_error(members(how.process_set)) if how.op == "Adasum" else ""
    return run_named_request(how.request(name_for(series, name, how.process_set)), arrays, how.process_set, error)


def allreduce_gradient(
    grads: Sequence[Array],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    how: NamedReduction,
    name: str | None = None,
) -> list[Array]:
    """Return the gradients of the inputs of an allreduce from those of its outputs, of which every rank has one.

    Sums, averages and Adasum: the same reduction of the gradients. Min and Max: the sum, to the ranks that held
    the value, in equal parts. Product: the sum times the product of the other ranks' inputs.
    """
    if how.op in ("Sum", "Average", "Adasum"):
        return allreduce(grads, how, name, "allreduce_gradient")
    total = NamedReduction("Sum", how.process_set)
    summed = allreduce(grads, total, name, "allreduce_gradient")
    factor = how.prescale * how.postscale
    if how.op == "Product":
        others = [
            _product_of_others(array, how, _request_name_of_part(name, f"input{index}"))
            for index, array in enumerate(inputs)
        ]
        return [np.asarray(factor * g * o, g.dtype) for g, o in zip(summed, others, strict=True)]
    mine = [scaled(scaled(array, how.prescale), how.postscale) for array in inputs]
    held = [np.asarray(x == y, x.dtype) for x, y in zip(mine, outputs, strict=True)]
    holders = allreduce(held, total, _request_name_of_part(name, "holders"), "allreduce_gradient")
    return [np.asarray(factor * g * h / n, g.dtype) for g, h, n in zip(summed, held, holders, strict=True)]


def allgather(arrays: Sequence[Array], process_set: ProcessSet, name: str | None = None) -> list[Array]:
    """Return every rank's rows of each array."""
    return list(named_result_of(begin_allgather(arrays, process_set, name)))


def allgather_gradient(
    grads: Sequence[Array],
    rows: Sequence[int],
    process_set: ProcessSet,
    name: str | None = None,
    op: str = "Average",
) -> list[Array]:
    """Return the gradients of this rank's rows (`rows` of each array): the mean of every rank's, as in Horovod, or
    their Sum.
    """
    reduced = allreduce(grads, NamedReduction(op, process_set), name, "allgather_gradient")
    (everyone,) = allgather([np.array([rows], np.int64)], process_set, _request_name_of_part(name, "rows"))
    before = everyone[: process_set.rank() or 0].sum(axis=0)
    return [grad[start : start + own] for grad, start, own in zip(reduced, before, rows, strict=True)]


def broadcast(arrays: Sequence[Array], root: int, process_set: ProcessSet, name: str | None = None) -> list[Array]:
    """Return the arrays of world rank `root`."""
    return list(named_result_of(begin_broadcast(arrays, root, process_set, name)))


def begin_allgather(arrays: Sequence[Array], process_set: ProcessSet, name: str | None) -> Any:
    """Begin to gather; return the future of every rank's rows of each array."""
    request = NamedRequest(CollectiveKind.ALLGATHER, name_for("allgather", name, process_set))
    return begin_named_request(request, arrays, process_set, scalar_error([np.shape(array) for array in arrays]))


def begin_broadcast(arrays: Sequence[Array], root: int, process_set: ProcessSet, name: str | None) -> Any:
    """Begin to broadcast; return the future of the root's arrays."""
    request = NamedRequest(CollectiveKind.BROADCAST, name_for("broadcast", name, process_set), root=int(root))
    return begin_named_request(request, arrays, process_set)


def broadcast_gradient(grad: Array, root: int, process_set: ProcessSet, name: str | None = None) -> Array:
    """Return the mean of every rank's gradient at the root, and zeros elsewhere, as in Horovod."""
    (mean,) = allreduce([grad], NamedReduction("Average", process_set), name, "broadcast_gradient")
    return mean if queue_of(process_set).rank == root else np.zeros_like(mean)


def alltoall(
    array: Array, splits: Sequence[float] | None, process_set: ProcessSet, name: str | None = None
) -> tuple[Array, Array]:
    """Send `splits[i]` rows to rank i of the set; return the rows received and how many came from each rank."""
    error = request_splits_error(np.shape(array), splits, members(process_set))
    cut = None if splits is None or error else tuple(int(rows) for rows in splits)
    request = NamedRequest(CollectiveKind.ALLTOALL, name_for("alltoall", name, process_set), splits=cut)
    received, counts = run_named_request(request, [array], process_set, error)
    return received, counts


def reducescatter(arrays: Sequence[Array], how: NamedReduction, name: str | None) -> list[Array]:
    """Return this rank's rows of each reduced array."""
    request = how.request(name_for("reducescatter", name, how.process_set), CollectiveKind.REDUCESCATTER)
    return run_named_request(request, arrays, how.process_set, scalar_error([np.shape(array) for array in arrays]))


def reducescatter_gradient(grads: Sequence[Array], how: NamedReduction, name: str | None = None) -> list[Array]:
    """Return every rank's gradients, gathered; for Sum times the number of ranks, as Horovod does."""
    factor = how.prescale * how.postscale * (members(how.process_set) if how.op == "Sum" else 1)
    return [np.asarray(grad * factor, grad.dtype) for grad in allgather(grads, how.process_set, name)]


def _request_name_of_part(name: str | None, part: str) -> str | None:
    return None if name is None else f"{name}.{part}"


def _product_of_others(array: Array, how: NamedReduction, name: str | None) -> Array:
    (stacked,) = allgather([array.reshape(1, -1)], how.process_set, name)
    kept = np.delete(stacked, how.process_set.rank() or 0, axis=0)
    return np.asarray(np.prod(kept * kept.dtype.type(how.prescale), axis=0).reshape(array.shape))
