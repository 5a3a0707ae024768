"""Allreduce and reducescatter on tensors, eagerly and in graphs, with gradients."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringtrain.errors import ConfigurationError
from ringtrain.named import arrays
from ringtrain.named.arrays import Reduction
from ringtrain.named.ops import Average, ReduceOp, chosen_op, only_sums
from ringtrain.named.process_sets import ProcessSet
from ringtrain.named.world import global_process_set, members
from ringtrain.tensorflow.calls import any_rows, host_call, scoped, value_of
from ringtrain.tensorflow.compression import Compression, Compressor
from ringtrain.tensorflow.gather import grouped_allgather


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
    instead (`op` Average or Sum). `op`: Average (default), Sum, Adasum, Min, Max or Product. `average`: deprecated
    form of `op`. Factors multiply before and after. `name`: pairs this call with the others' (default: a counter).
    `device_dense`, `device_sparse`: where the result is placed.
    """
    chosen = chosen_op(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        return _slices(tensor, chosen, device_sparse, scoped(name, ignore_name_scope), process_set)
    how = Reduction(chosen.value, process_set, prescale_factor, postscale_factor)
    return _reduced([tensor], how, device_dense, compression, scoped(name, ignore_name_scope))[0]


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
    chosen = chosen_op(op, average)
    name = scoped(name, ignore_name_scope)
    dense = [index for index, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    how = Reduction(chosen.value, process_set, prescale_factor, postscale_factor)
    results: list[Any] = list(tensors)
    if dense:
        reduced = _reduced([tensors[index] for index in dense], how, device_dense, compression, name)
        for index, tensor in zip(dense, reduced, strict=True):
            results[index] = tensor
    for index in sorted(set(range(len(tensors))) - set(dense)):
        own_name = None if name is None else f"{name}.{index}"
        results[index] = _slices(tensors[index], chosen, device_sparse, own_name, process_set)
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
    return _scattered([tensor], how, device_dense, compression, scoped(name, ignore_name_scope))[0]


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
    return _scattered(tensors, how, device_dense, compression, None)


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
            def on_host(*given: Any) -> Any:
                return arrays.allreduce_gradient(given[:count], given[count : 2 * count], given[2 * count :], how)

            return host_call(on_host, [*map(value_of, grads), *inputs, *outputs], dtypes, shapes)

        return tuple(outputs), gradient

    return list(reduce(*tensors))


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
            return host_call(
                lambda *given: arrays.reducescatter_gradient(given, how), [*map(value_of, grads)], dtypes, shapes
            )

        return tuple(outputs), gradient

    with tf.device(device):
        outputs = list(scatter(*values))
        return [compression.decompress(output, ctx) for output, (_, ctx) in zip(outputs, small, strict=True)]


def _slices(slices: Any, op: ReduceOp, device: str, name: str | None, process_set: ProcessSet) -> Any:
    """Gather values and indices: slices of the same index are added where they are used."""
    if op.value not in ("Average", "Sum"):
        raise ConfigurationError(f"allreduce of IndexedSlices: op is {op.value}; expected Average or Sum")
    with tf.device(device):
        values, indices = grouped_allgather([slices.values, slices.indices], name, process_set=process_set)
        if op is Average:
            values = values / tf.cast(members(process_set), values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)
