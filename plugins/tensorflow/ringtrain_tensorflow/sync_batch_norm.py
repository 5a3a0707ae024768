"""Batch normalisation with mean and variance over the batches of all ranks."""

from typing import Any

import tensorflow as tf

from ringtrain import global_process_set
from ringtrain_tensorflow.gather import allgather
from ringtrain_tensorflow.keras.api import IS_KERAS_2, keras
from ringtrain_tensorflow.world_ops import is_always_alone, members_as


class SyncBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` that computes mean and variance in training over all ranks' batches.

    `fused`: accepted for compatibility with Horovod; there is no fused form. Ranks exchange count, mean and sum of
    squared deviations in one allgather, combined after Chan, Golub & LeVeque 1983; gradients flow through it.
    """

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused:
            raise ValueError("SyncBatchNormalization: fused is True; expected False, because it has no fused form")
        super().__init__(**{"fused": False, **kwargs} if IS_KERAS_2 else kwargs)

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if is_always_alone(global_process_set):
            return super()._moments(inputs, *args, **kwargs)
        if not IS_KERAS_2:
            return self._moments_of_all(inputs, self.axis, *args, **kwargs)
        moments = self._moments_of_all(inputs, self.axis[0], kwargs.get("mask"))
        if not kwargs.get("keep_dims"):
            return moments
        shape = [-1 if axis == self.axis[0] else 1 for axis in range(inputs.shape.rank)]
        return tf.reshape(moments[0], shape), tf.reshape(moments[1], shape)

    def _moments_of_all(self, inputs: Any, channels: int, mask: Any) -> tuple[Any, Any]:
        wide = tf.cast(inputs, tf.float32) if inputs.dtype in (tf.float16, tf.bfloat16) else inputs
        weights = tf.ones_like(wide) if mask is None else _spread_mask(mask, wide)
        axes = [axis for axis in range(wide.shape.rank) if axis != channels % wide.shape.rank]
        own_count = tf.reduce_sum(weights, axes)
        own_mean = tf.math.divide_no_nan(tf.reduce_sum(wide * weights, axes), own_count)
        shape = [-1 if axis not in axes else 1 for axis in range(wide.shape.rank)]
        own_deviation = tf.reduce_sum(weights * tf.square(wide - tf.reshape(own_mean, shape)), axes)
        rows = allgather(_summing(tf.stack([own_count, own_mean, own_deviation])[tf.newaxis]))
        counts, means, deviations = rows[:, 0], rows[:, 1], rows[:, 2]
        count = tf.reduce_sum(counts, 0)
        mean = tf.math.divide_no_nan(tf.reduce_sum(counts * means, 0), count)
        between = tf.reduce_sum(counts * tf.square(means - mean), 0)
        variance = tf.math.divide_no_nan(tf.reduce_sum(deviations, 0) + between, count)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


@tf.custom_gradient
def _summing(row: Any) -> Any:
    """Return `row` with its gradient times the number of ranks, because allgather's gradient is a mean over ranks."""
    return tf.identity(row), lambda grad: grad * members_as(global_process_set, grad.dtype)


def _spread_mask(mask: Any, like: Any) -> Any:
    """Return `mask` as weights that have the shape of `like`."""
    weights = tf.cast(mask, like.dtype)
    for _ in range(like.shape.rank - mask.shape.rank):
        weights = weights[..., tf.newaxis]
    return weights * tf.ones_like(like)
