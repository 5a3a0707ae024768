"""Check at intervals that all ranks have equal variables before an update. It runs on the host during the reduction."""

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from ringtrain import ProcessSet
from ringtrain.adapter import Array, OptimizerReplica, OptimizerReplicas, attached, trains_alone
from ringtrain_tensorflow.presence import unique_name_of
from ringtrain_tensorflow.streams import AROUND_NOTHING, GraphPartSurroundings

Look = Callable[[int], OptimizerReplica]


@dataclass
class _Comparisons:
    """Comparisons of one world, by name and variables, because tapes and graphs are created again and again."""

    found: dict[tuple[Any, ...], OptimizerReplicas] = field(default_factory=dict)


def comparing(name: str, variables: Sequence[Any], rate: Any, process_set: ProcessSet) -> GraphPartSurroundings:
    """Return a context for a reduction, in which ranks compare `variables` and the learning rate `rate`.

    `name`: name of the call. Nothing is compared if Python can read no variable: in the graphs of a session, and for
    tensors. Untrained variables are not compared.
    """
    held = [inner for one in variables if (inner := _readable(one)) is not None and inner.trainable]
    if not held:
        return AROUND_NOTHING
    look = functools.partial(_tensorflow_replica_of, held, _readable(rate))
    return GraphPartSurroundings(
        functools.partial(_current_look, name, held, process_set, look),
        functools.partial(_compared_variables, name, held, process_set),
        held,
    )


def _current_look(name: str, variables: Sequence[Any], process_set: ProcessSet, look: Look) -> Look:
    return look if trains_alone(process_set) else _tensorflow_replicas_of(name, variables, process_set).seen_now(look)


def _compared_variables(name: str, variables: Sequence[Any], process_set: ProcessSet, look: Look) -> Any:
    if trains_alone(process_set):
        return contextlib.nullcontext()
    return _tensorflow_replicas_of(name, variables, process_set).compared(look)


def _tensorflow_replicas_of(name: str, variables: Sequence[Any], process_set: ProcessSet) -> OptimizerReplicas:
    found = attached(_Comparisons).found
    which = process_set, name, *map(unique_name_of, variables)
    return found.setdefault(which, OptimizerReplicas(name, process_set))


def _tensorflow_replica_of(variables: Sequence[Any], rate: Any, part: int) -> OptimizerReplica:
    sizes = [(variable.shape[0] if variable.shape.rank else 1, _variable_octets(variable)) for variable in variables]
    cut = repr([(tuple(variable.shape), variable.dtype.name) for variable in variables])
    rows = [_variable_rows(variables[index], *bounds) for index, *bounds in OptimizerReplica.rows(sizes, part)]
    rates = [] if rate is None else [float(np.asarray(rate.read_value()))]
    return OptimizerReplica(cut, _tensorflow_platform(variables), OptimizerReplica.digest(rows), rates)


def _variable_rows(variable: Any, first: int, behind: int) -> Array:
    """Return the bytes of rows `first` to `behind` - 1 of `variable`; without a copy if it is in host memory."""
    value = variable.read_value()
    on_host = "CPU" in value.device
    array = np.asarray(value if on_host or not variable.shape.rank else value[first:behind])
    part = array[first:behind] if on_host and array.ndim else array
    return np.ascontiguousarray(part).reshape(-1).view(np.uint8)


def _variable_octets(variable: Any) -> int:
    octets: int = variable.shape.num_elements() * variable.dtype.size
    return octets


def _tensorflow_platform(variables: Sequence[Any]) -> str:
    threads = tf.config.threading.get_intra_op_parallelism_threads() or len(os.sched_getaffinity(0))
    devices = sorted({variable.device.rpartition("device:")[2].partition(":")[0] for variable in variables})
    return f"{tf.__version__} {devices} {OptimizerReplica.processor()} {threads}"


def _readable(variable: Any) -> Any:
    """Return the TensorFlow variable of `variable` if Python can read it while a graph runs, or None."""
    inner = getattr(variable, "_value", variable)
    if not isinstance(inner, tf.Variable) or not tf.compat.v1.executing_eagerly_outside_functions():
        return None
    return inner if inner.shape.is_fully_defined() else None
