"""Broadcast and gather of Python objects: plain data, arrays, tensors, and with `allow_pickle` any object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf

from ringtrain import ProcessSet, adapter, global_process_set
from ringtrain.adapter import ForeignWireValues
from ringtrain.errors import ConfigurationError
from ringtrain_tensorflow.errors import as_tensorflow


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    allow_pickle: bool = False,
) -> Any:
    """Return the object of `root_rank` on every rank. `session`: accepted for compatibility with Horovod.

    Numbers, strings, bytes, None, lists, tuples, sets, dictionaries, arrays, tensors, the values of variables, paths,
    dates and times, ranges, namespaces, dataclasses and named tuples are sent as data that cannot execute code; any
    other object needs `allow_pickle=True` on every rank. Raises ConfigurationError on every rank if the root's object
    cannot be sent.
    """
    with as_tensorflow():
        return adapter.broadcast_object(obj, root_rank, name, process_set, allow_pickle, TENSORFLOW_VALUES)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    allow_pickle: bool = False,
) -> Callable[[Any], Any]:
    """Return a function of one object that calls `broadcast_object` with these arguments."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set, allow_pickle)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    allow_pickle: bool = False,
) -> list[Any]:
    """Return all ranks' objects, in rank order. Types are limited as for `broadcast_object`."""
    with as_tensorflow():
        return adapter.allgather_object(obj, name, process_set, allow_pickle, TENSORFLOW_VALUES)


def _packed_tensorflow_values(value: Any) -> bytes:
    """Convert a dtype, a variable, or a tensor with a value to bytes. Raises ConfigurationError for other objects."""
    if isinstance(value, tf.DType):
        return b"D" + value.name.encode()
    if not (isinstance(value, tf.Tensor | tf.Variable) or hasattr(value, "_value")) or not tf.executing_eagerly():
        raise ConfigurationError(f"{type(value).__name__} is not a tensor with a value")
    tensor = tf.convert_to_tensor(value)
    serialized: bytes = tf.io.serialize_tensor(tensor).numpy()
    return b"T" + tensor.dtype.name.encode() + b" " + serialized


def _unpacked_tensorflow_values(data: bytes) -> Any:
    if data[:1] == b"D":
        return tf.as_dtype(data[1:].decode())
    name, serialized = data[1:].split(b" ", 1)
    with tf.init_scope():
        return tf.io.parse_tensor(serialized, tf.as_dtype(name.decode()))


TENSORFLOW_VALUES: Final = ForeignWireValues(_packed_tensorflow_values, _unpacked_tensorflow_values)
