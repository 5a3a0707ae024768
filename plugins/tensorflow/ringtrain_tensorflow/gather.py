"""Allgather, broadcast and alltoall on tensors, eagerly and in graphs, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ringtrain import ProcessSet, global_process_set
from ringtrain.adapter import Array, NamedCollective, allgather_gradient, broadcast_gradient
from ringtrain_tensorflow.calls import any_rows, differentiable_tensorflow_call, gradient_call, host_call, value_of
from ringtrain_tensorflow.names import name_of_call, name_of_gradient


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return all ranks' rows of `tensor`, in rank order. Ranks may have different numbers of rows. Differentiable.

    For other arguments see `allreduce`.
    """
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return the rows of all ranks in the set, for each of `tensors`, in rank order, gathered in one collective.

    For other arguments see `allreduce`.
    """
    return gathered_by_tensorflow(tensors, name_of_call(name, ignore_name_scope), process_set)


@tf.autograph.experimental.do_not_convert
def gathered_by_tensorflow(tensors: Sequence[Any], full: str | None, process_set: ProcessSet) -> list[Any]:
    """Gather like `grouped_allgather`, under the name `full` that was assigned to the call before."""
    values = [value_of(tensor) for tensor in tensors]
    rows = [tf.shape(tensor)[0] if tensor.shape.rank else tf.constant(0) for tensor in values]

    def backward(own_name: str | None, grads: Sequence[Array], own_rows: Sequence[Array]) -> list[Array]:
        return allgather_gradient(grads, [int(n) for n in own_rows], process_set, own_name)

    def forward(*given: Array) -> list[Array]:
        return NamedCollective.allgather(process_set, full).run(given)

    shapes = [any_rows(tensor) for tensor in values]
    return differentiable_tensorflow_call(forward, backward, values, shapes, full, lambda *_: rows)


@tf.autograph.experimental.do_not_convert
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the tensor of `root_rank` (a rank of the world). Its gradient on that rank is the mean over the set.

    For other arguments see `allreduce`.
    """
    value = value_of(tensor)
    full = name_of_call(name, ignore_name_scope)

    def forward(array: Array) -> list[Array]:
        return NamedCollective.broadcast(root_rank, process_set, full).run([array])

    def backward(own_name: str | None, grads: Sequence[Array], _: Any) -> list[Array]:
        return broadcast_gradient(grads, root_rank, process_set, own_name)

    return differentiable_tensorflow_call(forward, backward, [value], [value.shape], full)[0]


@tf.autograph.experimental.do_not_convert
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send `splits[i]` rows of `tensor` to rank i of the set (default: equal parts). Return the received rows in rank
    order, and with `splits` also the number of rows from each rank. Differentiable.

    For other arguments see `allreduce`.
    """
    value = value_of(tensor)
    full = name_of_call(name, ignore_name_scope)
    given_splits = tf.constant([], tf.int32) if splits is None else tf.convert_to_tensor(splits)

    @tf.custom_gradient
    def exchange(given: Any, cut: Any) -> Any:
        def forward(array: Any, lengths: Any) -> Any:
            own = None if splits is None else np.asarray(lengths).reshape(-1).tolist()
            return NamedCollective.alltoall(own, process_set, full).run([array])

        output, received = host_call(forward, [given, cut], [value.dtype, tf.int32], [any_rows(value), [None]])

        def gradient(grad: Any, _: Any) -> Any:
            own_name = name_of_gradient(full)
            (back,) = gradient_call(
                lambda array, lengths: NamedCollective.alltoall(lengths, process_set, own_name).run([array])[:1],
                [value_of(grad), received],
                [value.dtype],
                [value.shape],
            )
            return back, None

        return (output, received), gradient

    output, received = exchange(value, given_splits)
    return output if splits is None else (output, received)
