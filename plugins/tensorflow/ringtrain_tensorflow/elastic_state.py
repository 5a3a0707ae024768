"""Elastic state (saved at commits, sent to new ranks) of TensorFlow and Keras variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from ringtrain import broadcast_, elastic, rank
from ringtrain.adapter import can_travel, current_world, join
from ringtrain.elastic import ObjectState, StateHandler
from ringtrain.errors import MismatchError, counted
from ringtrain_tensorflow.gradients import identity
from ringtrain_tensorflow.objects import TENSORFLOW_VALUES

T = TypeVar("T")


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Return `func(state, ...)` decorated so that it is called again after a change of the world; see
    `ringtrain.elastic.run`.

    TensorFlow functions and compiled models need not be rebuilt: their collectives look up the world when they run.
    """
    return elastic.run(func)


class VariablesState(ObjectState):
    """Elastic state with TensorFlow variables; its plain values may be tensors."""

    _foreign = TENSORFLOW_VALUES

    def sync(self) -> None:
        """Send the state to all ranks, as `ringtrain.elastic.State` does. First all ranks `join()`, so that a rank that
        still reduces, for example while it creates optimizer variables, does not wait."""
        join()
        super().sync()


class VariablesHandler(StateHandler):
    """Handler that copies variables at a commit, assigns the copies at a restore, and sends them to new ranks.

    `value`: the object with the variables. Variables of a random generator belong to each rank: they are saved but not
    sent.
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def variables(self) -> Sequence[Any]:
        """Return the variables of `value`, in the same order on all ranks."""
        return list(self.value)

    def save(self) -> None:
        values = self.read(self.variables())
        self._saved = {identity(v): value for v, value in zip(self.variables(), values, strict=True)}

    def restore(self) -> None:
        kept = [variable for variable in self.variables() if identity(variable) in self._saved]
        self.write(kept, [self._saved[identity(variable)] for variable in kept])

    def sync(self, root: int = 0) -> None:
        """Overwrite all ranks' variables with those of rank `root`. Collective. Raises MismatchError on all ranks if
        shapes or dtypes differ."""
        sent = [variable for variable in self.variables() if can_travel(_variable_dtype(variable))]
        self._check_alike([[_name(v), _variable_dtype(v), list(v.shape)] for v in sent])
        received = [np.array(value, order="C") for value in self.read(sent)]
        for array in received:
            broadcast_(array.reshape(-1).view(np.uint8), root, "elastic variables")
        if rank() != root:
            self.write(sent, received)

    def read(self, variables: Sequence[Any]) -> list[Any]:
        """Return copies of the variables' values."""
        return [tf.identity(tf.convert_to_tensor(variable)) for variable in variables]

    def write(self, variables: Sequence[Any], values: Iterable[Any]) -> None:
        """Assign `values`."""
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    def _check_alike(self, own: list[Any]) -> None:
        """Raise MismatchError if shapes or dtypes of variables differ between ranks. Names may differ, because they
        contain numbers that depend on what a process has created."""
        everyone = current_world().group().allgather_object(own, "elastic variables")
        for number, theirs in enumerate(everyone):
            if [v[1:] for v in theirs] != [v[1:] for v in everyone[0]]:
                raise MismatchError(
                    f"the elastic state has {_variables_difference(everyone[0], theirs)} on rank {number}; every rank "
                    "must build the same model and optimizer before it creates the state"
                )


class SessionVariablesHandler(VariablesHandler):
    """Handler for the variables of a `tf.compat.v1` graph, read and assigned in a session."""

    def __init__(self, value: Any, session: Any) -> None:
        self._session = session
        super().__init__(value)

    def read(self, variables: Sequence[Any]) -> list[Any]:
        return list(self._session.run(list(variables)))

    def write(self, variables: Sequence[Any], values: Iterable[Any]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.load(value, self._session)


def _variables_difference(expected: list[Any], found: list[Any]) -> str:
    for one, other in zip(expected, found, strict=False):
        if one[1:] != other[1:]:
            return f"{one[0]} as {one[1]} {one[2]} on rank 0 and {other[0]} as {other[1]} {other[2]}"
    return f"{counted(len(expected), 'variable')} on rank 0 and {len(found)}"


def _variable_dtype(variable: Any) -> str:
    """Return the dtype's name. Keras 3 uses strings, and variables of graphs have reference types."""
    dtype = variable.dtype
    return dtype if isinstance(dtype, str) else str(dtype.base_dtype.name)


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)
