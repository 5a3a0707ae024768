"""Collectives on tensors, arrays and numbers, for code outside Keras' training loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ringtrain import Average
from ringtrain_tensorflow import gather, reduce
from ringtrain_tensorflow.compression import Compression, Compressor
from ringtrain_tensorflow.variables import broadcast_global_variables as _broadcast_global_variables


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """Return `value` reduced over all ranks, as a tensor. For arguments see `ringtrain.tensorflow.allreduce`."""
    return _evaluated_keras_tensor(
        reduce.allreduce(
            _keras_tensor(value),
            average,
            compression=compression,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            name=name,
        )
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Return the rows of all ranks' `value`, in rank order."""
    return _evaluated_keras_tensor(gather.allgather(_keras_tensor(value), name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the value of `root_rank`."""
    return _evaluated_keras_tensor(gather.broadcast(_keras_tensor(value), root_rank, name))


def reducescatter(value: Any, name: str | None = None, op: Any = Average) -> Any:
    """Return this rank's share of the rows of `value` reduced over all ranks."""
    return _evaluated_keras_tensor(reduce.reducescatter(_keras_tensor(value), name=name, op=op))


def broadcast_global_variables(root_rank: int) -> Any:
    """Return the operation that overwrites all global variables of a `tf.compat.v1` graph with those of `root_rank`.
    For eager execution use `callbacks.BroadcastGlobalVariablesCallback`."""
    return _broadcast_global_variables(root_rank)


def _keras_tensor(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, int | float | list | tuple) else value


def _evaluated_keras_tensor(tensor: Any) -> Any:
    """Return `tensor`, or in a `tf.compat.v1` session its value as an array."""
    session = None if tf.executing_eagerly() else tf.compat.v1.get_default_session()
    return tensor if session is None else session.run(tensor)
