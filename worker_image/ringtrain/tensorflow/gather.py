"""Allgather, broadcast and alltoall on tensors, eagerly and in graphs, with gradients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ringtrain.negotiation import arrays
from ringtrain.process_groups.process_sets import ProcessSet, global_process_set
from ringtrain.tensorflow.calls import any_rows, host_call, value_of
from ringtrain.tensorflow.names import name_of_call, name_of_gradient


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return every rank's rows in rank order; their number may differ. Gradients flow through."""
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return each of `tensors` gathered, as one collective."""
    return gathered(tensors, name_of_call(name, ignore_name_scope), process_set)


@tf.autograph.experimental.do_not_convert
def gathered(tensors: Sequence[Any], full: str | None, process_set: ProcessSet) -> list[Any]:
    """Gather as `grouped_allgather` does, under a name that was dealt before."""
    values = [value_of(tensor) for tensor in tensors]
    dtypes, shapes = [t.dtype for t in values], [t.shape for t in values]
    count = len(values)

    @tf.custom_gradient
    def gather(*inputs: Any) -> Any:
        rows = [tf.shape(tensor)[0] if tensor.shape.rank else tf.constant(0) for tensor in inputs]
        outputs = host_call(
            lambda *given: arrays.allgather(given, process_set, full),
            inputs,
            dtypes,
            [any_rows(t) for t in inputs],
        )

        def gradient(*grads: Any) -> Any:
            own_name = name_of_gradient(full)

            def on_host(*given: Any) -> Any:
                own_rows = [int(n) for n in given[count:]]
                return arrays.allgather_gradient(given[:count], own_rows, process_set, own_name)

            return host_call(on_host, [*map(value_of, grads), *rows], dtypes, shapes)

        return tuple(outputs), gradient

    return list(gather(*values))


@tf.autograph.experimental.do_not_convert
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the tensor of `root_rank` (a rank of the world); gradients flow back to it."""
    value = value_of(tensor)
    full = name_of_call(name, ignore_name_scope)

    @tf.custom_gradient
    def send(given: Any) -> Any:
        (output,) = host_call(
            lambda array: arrays.broadcast([array], root_rank, process_set, full),
            [given],
            [value.dtype],
            [value.shape],
        )

        def gradient(grad: Any) -> Any:
            own_name = name_of_gradient(full)
            (flowed,) = host_call(
                lambda array: [arrays.broadcast_gradient(array, root_rank, process_set, own_name)],
                [value_of(grad)],
                [value.dtype],
                [value.shape],
            )
            return flowed

        return output, gradient

    return send(value)


@tf.autograph.experimental.do_not_convert
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send `splits[i]` rows of `tensor` to rank i of the set (default: equal parts). Return the rows received, in
    rank order, and with `splits` also how many came from each rank. Gradients go back the way that the rows came.
    """
    value = value_of(tensor)
    full = name_of_call(name, ignore_name_scope)
    given_splits = tf.constant([], tf.int32) if splits is None else tf.cast(splits, tf.int32)

    @tf.custom_gradient
    def exchange(given: Any, cut: Any) -> Any:
        def forward(array: Any, lengths: Any) -> Any:
            own = None if splits is None else np.asarray(lengths).reshape(-1).tolist()
            return arrays.alltoall(array, own, process_set, full)

        output, received = host_call(forward, [given, cut], [value.dtype, tf.int32], [any_rows(value), [None]])

        def gradient(grad: Any, _: Any) -> Any:
            own_name = name_of_gradient(full)
            (back,) = host_call(
                lambda array, lengths: arrays.alltoall(array, lengths, process_set, own_name)[:1],
                [value_of(grad), received],
                [value.dtype],
                [value.shape],
            )
            return back, None

        return (output, received), gradient

    output, received = exchange(value, given_splits)
    return output if splits is None else (output, received)
