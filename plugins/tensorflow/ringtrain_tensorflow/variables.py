"""Broadcast of variables, so that all ranks start with equal values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from ringtrain import ProcessSet, global_process_set
from ringtrain.adapter import NamedCollective
from ringtrain.errors import ConfigurationError
from ringtrain_tensorflow.calls import host_call, value_of
from ringtrain_tensorflow.names import name_of_call


@tf.autograph.experimental.do_not_convert
def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Overwrite `variables` with those of `root_rank`, all in one call; return their new values."""
    held = list(variables)
    if not held:
        return []
    values = [value_of(variable) for variable in held]
    call = name_of_call(name or "variables")
    names = [f"{call}.{index}.{_tensorflow_variable_name(v)}" for index, v in enumerate(held)]

    def on_host(*given: Any) -> Any:
        futures = [
            NamedCollective.broadcast(root_rank, process_set, own).begin([array])
            for array, own in zip(given, names, strict=True)
        ]
        return [future.result()[0] for future in futures]

    received = host_call(on_host, values, [v.dtype for v in values], [v.shape for v in values])
    return [variable.assign(value) for variable, value in zip(held, received, strict=True)]


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Overwrite `variables` (of TensorFlow or Keras) with those of `root_rank`.

    In a `tf.compat.v1` graph, returns the operation that does it. `inplace`: accepted for compatibility with Horovod.
    """
    assigned = broadcast_(list(variables), root_rank, process_set=process_set)
    return None if tf.executing_eagerly() or not assigned else tf.group(*assigned)


def broadcast_global_variables(root_rank: int) -> Any:
    """Return the operation that overwrites all global variables of a `tf.compat.v1` graph with those of `root_rank`.

    Raises ConfigurationError when executing eagerly, where there is no such collection.
    """
    if tf.executing_eagerly():
        raise ConfigurationError(
            "broadcast_global_variables needs a tf.compat.v1 graph; with eager execution pass the variables to "
            "broadcast_variables(model.variables, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Session hook that overwrites all global variables with those of `root_rank` after a session is created.

    `device`: accepted for compatibility with Horovod.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self._root_rank = root_rank
        self._operation: Any = None
        self._graph: Any = None

    def begin(self) -> None:
        """Add the broadcast to the current TensorFlow graph, unless it has been added."""
        if self._graph is not tf.compat.v1.get_default_graph():
            self._graph = tf.compat.v1.get_default_graph()
            self._operation = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the broadcast in the new session."""
        session.run(self._operation)


def _tensorflow_variable_name(variable: Any) -> str:
    """Return the last two words of the variable's name, without numbers, so that it is equal on all ranks. Keras adds
    numbers that depend on the process, and the model's name unless the model was loaded."""
    name = str(getattr(variable, "path", None) or getattr(variable, "name", "variable")).partition(":")[0]
    words = re.sub(r"_\d+(?![^\W_])", "", name).replace("/", "_").split("_")
    return "_".join(words[-2:])


def vars_to_refs(vars: Any) -> Any:
    """Return hashable references to variables; nested lists become nested tuples."""
    return tuple(vars_to_refs(var) for var in vars) if isinstance(vars, list) else vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """Undo `vars_to_refs`."""
    return [refs_to_vars(ref) for ref in refs] if isinstance(refs, tuple) else refs.deref()
