"""Allreduce and reducescatter on tensors, eagerly and in graphs, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringtrain import Average, ProcessSet, global_process_set
from ringtrain.adapter import Array, NamedCollective, NamedReduction, allreduce_gradient, reducescatter_gradient
from ringtrain.compression import run_compressed
from ringtrain_tensorflow.calls import any_rows, differentiable_tensorflow_call, value_of
from ringtrain_tensorflow.compression import Compression, Compressor
from ringtrain_tensorflow.errors import NotSupportedError
from ringtrain_tensorflow.gather import gathered_by_tensorflow
from ringtrain_tensorflow.names import name_of_call
from ringtrain_tensorflow.world_ops import members_as


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
    """Return `tensor` reduced over the ranks of `process_set`. Differentiable.

    `tensor`: tensor or variable of the same shape on all ranks, or IndexedSlices, whose slices are gathered instead
    (`op` Average or Sum; the factors apply to them, too). `op`: Average (default), Sum, Adasum, Min, Max or Product.
    `average`: deprecated form of `op`. `prescale_factor` multiplies the tensor before the reduction, `postscale_factor`
    the result. `name`: pairs this call with those of the other ranks (default: a number, assigned when the call is
    made, or in a graph when it is built). `device_dense`, `device_sparse`: devices of the result. `ignore_name_scope`:
    whether the name has no name scope as prefix.
    """
    how = NamedReduction.of(op, average, prescale_factor, postscale_factor, process_set)
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
    """Return each of `tensors` reduced over the process set, in one call. IndexedSlices are gathered separately.

    For other arguments see `allreduce`.
    """
    how = NamedReduction.of(op, average, prescale_factor, postscale_factor, process_set)
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
    """Return this rank's rows of `tensor` reduced over all ranks (Average or Sum). If rows cannot be divided equally,
    the first ranks get one more. The gradient is gathered from all ranks; for Sum it is multiplied by the number of
    ranks, as in Horovod."""
    how = NamedReduction.of_sums("reducescatter", op, prescale_factor, postscale_factor, process_set)
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
    """Return this rank's rows of each of `tensors`, reduced over the process set in one collective.

    For other arguments see `allreduce`.
    """
    how = NamedReduction.of_sums("reducescatter", op, prescale_factor, postscale_factor, process_set)
    return _scattered(tensors, how, device_dense, compression, name_of_call(None))


@tf.autograph.experimental.do_not_convert
def _reduced(
    tensors: Sequence[Any], how: NamedReduction, device: str, compression: type[Compressor], name: str | None
) -> list[Any]:
    def forward(*given: Array) -> list[Array]:
        return NamedCollective.allreduce(how, name).run(given)

    def backward(own_name: str | None, grads: Sequence[Array], saved: Sequence[Array]) -> list[Array]:
        inputs, outputs = saved[: len(grads)], saved[len(grads) :]
        return allreduce_gradient(grads, inputs, outputs, how, own_name)

    def kept(inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return [*inputs, *outputs] if how.op in ("Min", "Max", "Product") else ()

    def call(values: list[Any]) -> list[Any]:
        shapes = [tensor.shape for tensor in values]
        return differentiable_tensorflow_call(forward, backward, values, shapes, name, kept)

    with tf.device(device):
        return run_compressed(compression, [value_of(tensor) for tensor in tensors], call)


@tf.autograph.experimental.do_not_convert
def _scattered(
    tensors: Sequence[Any], how: NamedReduction, device: str, compression: type[Compressor], name: str | None
) -> list[Any]:
    def forward(*given: Array) -> list[Array]:
        return NamedCollective.reducescatter(how, name).run(given)

    def backward(own_name: str | None, grads: Sequence[Array], _: Any) -> list[Array]:
        return reducescatter_gradient(grads, how, own_name)

    def call(values: list[Any]) -> list[Any]:
        return differentiable_tensorflow_call(forward, backward, values, [any_rows(tensor) for tensor in values], name)

    with tf.device(device):
        return run_compressed(compression, [value_of(tensor) for tensor in tensors], call)


def _slices(slices: Any, how: NamedReduction, device: str, name: str | None) -> Any:
    """Return all ranks' IndexedSlices as one, scaled for `how`. TensorFlow later adds slices of equal index."""
    if how.op not in ("Average", "Sum"):
        raise NotSupportedError(
            f"allreduce of IndexedSlices: op is {how.op}; expected Average or Sum, or sparse_as_dense=True"
        )
    with tf.device(device):
        values, indices = gathered_by_tensorflow([slices.values, slices.indices], name, how.process_set)
        return tf.IndexedSlices(scaled_slices(values, how), indices, slices.dense_shape)


def scaled_slices(values: Any, how: NamedReduction) -> Any:
    """Return `values`, gathered from all ranks, scaled so that their sum is the reduction `how`. Averages of integers
    are floats, as in Horovod."""
    if how.op == "Average":
        values = values / members_as(how.process_set, values.dtype)
    factor = how.prescale * how.postscale
    if factor == 1.0:
        return values
    if values.dtype.is_integer:
        if factor.is_integer():
            return values * tf.constant(int(factor), values.dtype)
        return tf.cast(tf.cast(values, tf.float64) * factor, values.dtype)
    return values * tf.cast(factor, values.dtype)
