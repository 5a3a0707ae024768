"""Allreduce and reducescatter on tensors, eagerly and in graphs, with gradients."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringtrain.negotiation import arrays
from ringtrain.negotiation.arrays import Reduction
from ringtrain.process_groups.process_sets import ProcessSet, global_process_set, members
from ringtrain.reduction.ops import Average, chosen_op, only_sums
from ringtrain.tensorflow.calls import any_rows, host_call, value_of
from ringtrain.tensorflow.compression import Compression, Compressor
from ringtrain.tensorflow.errors import NotSupportedError
from ringtrain.tensorflow.gather import gathered
from ringtrain.tensorflow.names import name_of_call, name_of_gradient


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Return `tensor` reduced over the ranks of `process_set`; gradients flow through.

    `tensor`: tensor or variable of the same shape on all ranks, or IndexedSlices, whose slices are gathered
    instead (`op` Average or Sum; the factors apply to them, too). `op`: Average (default), Sum, Adasum, Min, Max
    or Product. `average`: deprecated form of `op`. Factors multiply before and after. `name`: pairs this call with
    the others' (default: a number, dealt when the call is made, or in a graph when it is built). `device_dense`,
    `device_sparse`: where the result is placed.
    """
    how = Reduction(chosen_op(op, average).value, process_set, prescale_factor, postscale_factor)
    if isinstance(tensor, tf.IndexedSlices):
        return _slices(tensor, how, device_sparse, name_of_call(name, ignore_name_scope))
    return _reduced([tensor], how, device_dense, compression, name_of_call(name, ignore_name_scope))[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Return each of `tensors` reduced, as one collective; IndexedSlices are gathered one by one."""
    how = Reduction(chosen_op(op, average).value, process_set, prescale_factor, postscale_factor)
    name = name_of_call(name, ignore_name_scope)
    dense = [index for index, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    results: list[Any] = list(tensors)
    if dense:
        reduced = _reduced([tensors[index] for index in dense], how, device_dense, compression, name)
        for index, tensor in zip(dense, reduced, strict=True):
            results[index] = tensor
    for index in sorted(set(range(len(tensors))) - set(dense)):
        own_name = None if name is None else f"{name}.{index}"
        results[index] = _slices(tensors[index], how, device_sparse, own_name)
    return results


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: Any = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Return this rank's rows of the reduced `tensor` (Average or Sum); the first ranks have one more row where
    rows do not divide. The gradient is every rank's, gathered; for Sum times the number of ranks, as Horovod does.
    """
    how = Reduction(
        only_sums(chosen_op(op), "reducescatter").value, process_set, prescale_factor, postscale_factor
    )
    return _scattered([tensor], how, device_dense, compression, name_of_call(name, ignore_name_scope))[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Return this rank's rows of each of `tensors`, reduced as one collective."""
    how = Reduction(
        only_sums(chosen_op(op), "reducescatter").value, process_set, prescale_factor, postscale_factor
    )
    return _scattered(tensors, how, device_dense, compression, name_of_call(None))


@tf.autograph.experimental.do_not_convert
def _reduced(
    tensors: Sequence[Any], how: Reduction, device: str, compression: type[Compressor], name: str | None
) -> list[Any]:
    small = [compression.compress(value_of(tensor)) for tensor in tensors]
    with tf.device(device):
        outputs = _differentiable_allreduce([tensor for tensor, _ in small], how, name)
        return [compression.decompress(output, ctx) for output, (_, ctx) in zip(outputs, small, strict=True)]


def _differentiable_allreduce(tensors: Sequence[Any], how: Reduction, name: str | None) -> list[Any]:
    dtypes, shapes = [t.dtype for t in tensors], [t.shape for t in tensors]
    count = len(tensors)

    @tf.custom_gradient
    def reduce(*inputs: Any) -> Any:
        outputs = host_call(lambda *given: arrays.allreduce(given, how, name), inputs, dtypes, shapes)

        def gradient(*grads: Any) -> Any:
            own_name = name_of_gradient(name)

            def on_host(*given: Any) -> Any:
                parts = given[:count], given[count : 2 * count], given[2 * count :]
                return arrays.allreduce_gradient(*parts, how, own_name)

            return host_call(on_host, [*map(value_of, grads), *inputs, *outputs], dtypes, shapes)

        return tuple(outputs), gradient

    return list(reduce(*tensors))


@tf.autograph.experimental.do_not_convert
def _scattered(
    tensors: Sequence[Any], how: Reduction, device: str, compression: type[Compressor], name: str | None
) -> list[Any]:
    small = [compression.compress(value_of(tensor)) for tensor in tensors]
    values = [tensor for tensor, _ in small]
    dtypes, shapes = [t.dtype for t in values], [t.shape for t in values]

    @tf.custom_gradient
    def scatter(*inputs: Any) -> Any:
        outputs = host_call(
            lambda *given: arrays.reducescatter(given, how, name), inputs, dtypes, [any_rows(t) for t in values]
        )

        def gradient(*grads: Any) -> Any:
            own_name = name_of_gradient(name)

            def on_host(*given: Any) -> Any:
                return arrays.reducescatter_gradient(given, how, own_name)

            return host_call(on_host, [*map(value_of, grads)], dtypes, shapes)

        return tuple(outputs), gradient

    with tf.device(device):
        outputs = list(scatter(*values))
        return [compression.decompress(output, ctx) for output, (_, ctx) in zip(outputs, small, strict=True)]


def _slices(slices: Any, how: Reduction, device: str, name: str | None) -> Any:
    """Gather values and indices: slices of the same index are added where they are used."""
    check_slices(how.op)
    with tf.device(device):
        values, indices = gathered([slices.values, slices.indices], name, how.process_set)
        return tf.IndexedSlices(scaled_slices(values, how), indices, slices.dense_shape)


def check_slices(op: str) -> None:
    """Raise NotSupportedError for an op that IndexedSlices do not have."""
    if op not in ("Average", "Sum"):
        raise NotSupportedError(
            f"allreduce of IndexedSlices: op is {op}; expected Average or Sum, or sparse_as_dense=True"
        )


def scaled_slices(values: Any, how: Reduction) -> Any:
    """Return gathered `values` so that what is added up of them is the reduction `how`. As in Horovod averages of
    integers are no integers.
    """
    if how.op == "Average":
        values = values / tf.cast(members(how.process_set), values.dtype)
    factor = how.prescale * how.postscale
    if factor == 1.0:
        return values
    if values.dtype.is_integer:
        return tf.cast(tf.cast(values, tf.float64) * factor, values.dtype)
    return values * tf.cast(factor, values.dtype)
