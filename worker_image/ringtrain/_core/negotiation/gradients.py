"""Backward passes of collectives, on numpy arrays: each is computed by another collective."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringtrain._core.negotiation.collective import NamedCollective, NamedReduction
from ringtrain._core.negotiation.queues import queue_of
from ringtrain._core.process_groups.process_sets import ProcessSet, members
from ringtrain._core.process_groups.tensors import Array
from ringtrain._core.reduction.arithmetic import scaled


def allreduce_gradient(
    grads: Sequence[Array],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    how: NamedReduction,
    name: str | None = None,
) -> list[Array]:
    """Return the gradients of an allreduce's inputs, given the gradients of its outputs.

    For Sum, Average and Adasum these are the same reduction of the outputs' gradients. For Min and Max the sum of the
    outputs' gradients is divided equally among the ranks that had the value. For Product that sum is multiplied by the
    product of the other ranks' inputs.
    """
    if how.op in ("Sum", "Average", "Adasum"):
        return NamedCollective.allreduce(how, name, "allreduce_gradient").run(grads)
    total = NamedReduction("Sum", how.process_set)
    summed = NamedCollective.allreduce(total, name, "allreduce_gradient").run(grads)
    factor = how.prescale * how.postscale
    if how.op == "Product":
        others = [
            _product_of_others(array, how, _request_name_of_part(name, f"input{index}"))
            for index, array in enumerate(inputs)
        ]
        return [np.asarray(factor * g * o, g.dtype) for g, o in zip(summed, others, strict=True)]
    mine = [scaled(scaled(array, how.prescale), how.postscale) for array in inputs]
    held = [np.asarray(x == y, x.dtype) for x, y in zip(mine, outputs, strict=True)]
    holders = NamedCollective.allreduce(total, _request_name_of_part(name, "holders"), "allreduce_gradient").run(held)
    return [np.asarray(factor * g * h / n, g.dtype) for g, h, n in zip(summed, held, holders, strict=True)]


def allgather_gradient(
    grads: Sequence[Array],
    rows: Sequence[int],
    process_set: ProcessSet,
    name: str | None = None,
    op: str = "Average",
) -> list[Array]:
    """Return the gradients of this rank's input rows: the mean over ranks, as in Horovod, or the sum."""
    reduced = NamedCollective.allreduce(NamedReduction(op, process_set), name, "allgather_gradient").run(grads)
    counted = NamedCollective.allgather(process_set, _request_name_of_part(name, "rows"))
    (everyone,) = counted.run([np.array([rows], np.int64)])
    before = everyone[: process_set.rank() or 0].sum(axis=0)
    return [grad[start : start + own] for grad, start, own in zip(reduced, before, rows, strict=True)]


def broadcast_gradient(
    grads: Sequence[Array], root: int, process_set: ProcessSet, name: str | None = None, op: str = "Average"
) -> list[Array]:
    """Return the gradients of a broadcast's inputs: at the root the mean (as in Horovod) or sum, elsewhere zeros."""
    reduced = NamedCollective.allreduce(NamedReduction(op, process_set), name, "broadcast_gradient").run(grads)
    return reduced if queue_of(process_set).rank == root else [np.zeros_like(grad) for grad in reduced]


def reducescatter_gradient(grads: Sequence[Array], how: NamedReduction, name: str | None = None) -> list[Array]:
    """Return the gradients of a reduce-scatter's inputs: gathered and, for Sum, multiplied by the number of ranks."""
    factor = how.prescale * how.postscale * (members(how.process_set) if how.op == "Sum" else 1)
    gathered = NamedCollective.allgather(how.process_set, name).run(grads)
    return [np.asarray(grad * factor, grad.dtype) for grad in gathered]


def _request_name_of_part(name: str | None, part: str) -> str | None:
    return None if name is None else f"{name}.{part}"


def _product_of_others(array: Array, how: NamedReduction, name: str | None) -> Array:
    (stacked,) = NamedCollective.allgather(how.process_set, name).run([array.reshape(1, -1)])
    kept = np.delete(stacked, how.process_set.rank() or 0, axis=0)
    return np.asarray(np.prod(kept * kept.dtype.type(how.prescale), axis=0).reshape(array.shape))
