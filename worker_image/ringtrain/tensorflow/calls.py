"""Leave the graph: call Python with arrays, eagerly or inside `tf.function`.

Inside `tf.function` such calls keep the order of the program, so that ranks that run the same program make the
same calls in the same order. They cannot be compiled by XLA.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ringtrain.named.group import Array

Shape = Sequence[int | None]


def host_call(
    function: Callable[..., Sequence[Array]], inputs: Sequence[Any], dtypes: Sequence[Any], shapes: Sequence[Any]
) -> list[Any]:
    """Return `function(*arrays of inputs)` as tensors of the given dtypes and (partly known) shapes."""

    def call(*arrays: Array) -> list[Array]:
        results = function(*(np.asarray(array) for array in arrays))
        pairs = zip(results, dtypes, strict=True)
        return [np.asarray(result, tf.as_dtype(dtype).as_numpy_dtype, order="C") for result, dtype in pairs]

    with tf.device("/CPU:0"):
        outputs = tf.numpy_function(call, list(inputs), list(dtypes))
    outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
    for output, shape in zip(outputs, shapes, strict=True):
        output.set_shape(shape)
    return list(outputs)


def value_of(tensor: Any) -> Any:
    """Return a tensor for a tensor, variable (of TensorFlow or Keras), array or number."""
    return tf.convert_to_tensor(tensor)


def any_rows(tensor: Any) -> Any:
    """The shape of `tensor` with any number of rows."""
    shape = tensor.shape
    return tf.TensorShape([None]).concatenate(shape[1:]) if shape.rank else tf.TensorShape(None)


def scoped(name: str | None, ignore_name_scope: bool) -> str | None:
    """Return `name` under the current name scope, as operations are named in a graph."""
    if name is None or ignore_name_scope or tf.executing_eagerly():
        return name
    scope = tf.compat.v1.get_default_graph().get_name_scope()
    return f"{scope}/{name}" if scope else name
