"""Storage of a `HostOptimizer`'s state in files of Keras and TensorFlow.

Keras saves an optimizer through `save_own_variables` (`model.save`, `save_weights`, `BackupAndRestore`), TensorFlow
through its trackable children (`tf.train.Checkpoint`). Both get the whole `state_dict()` as one value of bytes, in the
format of `ringtrain.checkpoint`. A rank that saves must have the whole state: the rank of a world of one, every rank
with `sharded=False`, and otherwise the ranks to which `gather_state()` sent it after the last update.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
import tensorflow as tf

from ringtrain.adapter.state import read_state_of, write_state
from ringtrain.errors import ConfigurationError

STATE: Final = "ringtrain_state"  # bytes, as uint8
UPDATES: Final = "ringtrain_updates_without_state"  # number of updates of an optimizer that was saved without its state
HOW_TO_GATHER: Final = (
    "call optimizer.gather_state() on every rank after the last update, or put callbacks.GatherState() before the "
    "callback that saves"
)


class SavedByKeras(Protocol):
    """Methods of a HostOptimizer that this module needs to save and load its state."""

    def whole_state(self) -> Mapping[str, Any] | None: ...

    def begin_from(self, state: Mapping[str, Any]) -> None: ...


class CheckpointedState(tf.train.experimental.PythonState):
    """Trackable object through which a `tf.train.Checkpoint` saves and restores a HostOptimizer's state."""

    def __init__(self, optimizer: SavedByKeras) -> None:
        self._optimizer = optimizer

    def serialize(self) -> bytes:
        """Return the state of all ranks as bytes. Raises ConfigurationError if this rank has only its part of the
        state."""
        state = self._optimizer.whole_state()
        if state is None:
            raise ConfigurationError(
                f"tf.train.Checkpoint: this rank has only its part of the state of the HostOptimizer; {HOW_TO_GATHER}"
            )
        return packed(state)

    def deserialize(self, string_value: bytes) -> None:
        """Load a saved state."""
        if string_value:
            self._optimizer.begin_from(unpacked(string_value))


def packed(state: Mapping[str, Any]) -> bytes:
    """Convert a state to bytes; an empty state gives no bytes."""
    if not state:
        return b""
    file = io.BytesIO()
    write_state(file, int(state["updates"]), dict(state))
    return file.getvalue()


def unpacked(data: bytes) -> dict[str, Any]:
    """Return the state that `packed` converted to `data`. Raises CheckpointError if the data is damaged."""
    state: dict[str, Any] = read_state_of(io.BytesIO(data), "the saved state of a HostOptimizer")
    return state


def store_state(store: Any, state: Mapping[str, Any]) -> None:
    """Add `state` to `store`, the arrays that Keras saves for an optimizer."""
    store[STATE] = np.frombuffer(packed(state), np.uint8)


def stored_state(store: Any) -> dict[str, Any] | None:
    """Return the state of a HostOptimizer in `store`, the arrays that Keras has loaded for an optimizer; None if the
    optimizer has none."""
    return unpacked(np.asarray(store[STATE]).tobytes()) if STATE in store.keys() else None  # noqa: SIM118


def updates_without_state(store: Any) -> int:
    """Return the number of updates that a HostOptimizer had made when it was saved without its state; otherwise
    0."""
    return int(np.asarray(store[UPDATES])) if UPDATES in store.keys() else 0  # noqa: SIM118
