"""Elastic training with Keras, with the names of `horovod.tensorflow.keras.elastic`."""

from __future__ import annotations

import weakref
from typing import Any, Final

from ringtrain.errors import ConfigurationError
from ringtrain_tensorflow.elastic_state import run
from ringtrain_tensorflow.keras.api import keras
from ringtrain_tensorflow.keras.elastic_state import TensorFlowKerasState

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


class KerasState(TensorFlowKerasState):
    """Elastic state (saved at commits, sent to new ranks) of a Keras model, its optimizer and plain values.

        state = KerasState(model, batch=0, epoch=0)

    For arguments see `TensorFlowKerasState`.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


# Callbacks that record the position of the training in a state, by class; only those of the current `fit`.
_notes: Final[weakref.WeakKeyDictionary[Any, dict[type, Any]]] = weakref.WeakKeyDictionary()


class _PositionCallback(keras.callbacks.Callback):
    """Base class of callbacks that record the batch or epoch in `state`; they run before a commit."""

    def __init__(self, state: Any, attribute: str) -> None:
        super().__init__()
        if not hasattr(state, attribute):
            raise ConfigurationError(
                f"{type(self).__name__}: the state has no {attribute!r}; create the state with {attribute}=0"
            )
        self.state = state

    def on_train_begin(self, logs: Any = None) -> None:
        _notes.setdefault(self.state, {})[type(self)] = self


class CommitStateCallback(keras.callbacks.Callback):
    """Callback that commits `state` after every `batches_per_commit` batches and at the end of each epoch.

    The last batch of an epoch is committed with the end of the epoch. The position of this callback in the list does
    not matter: callbacks that record epoch and batch run before the commit.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit < 1:
            raise ConfigurationError(f"batches_per_commit is {batches_per_commit}; expected 1 or more")
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        self.batches_remaining = self.batches_per_commit  # equal on former and new ranks

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches_remaining -= 1
        if self.batches_remaining > 0:
            return
        self.batches_remaining = self.batches_per_commit
        noting = self._position_callbacks()
        for callback in noting:
            callback.on_batch_end(batch, logs)
        if not any(callback.epoch_ends(batch) for callback in noting if hasattr(callback, "epoch_ends")):
            self.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for callback in self._position_callbacks():
            callback.on_epoch_end(epoch, logs)
        self.commit()

    def commit(self) -> None:
        """Commit the state. Collective."""
        self.state.commit()

    def _position_callbacks(self) -> list[Any]:
        """Return the recording callbacks of this `fit`. Keras gives all its callbacks the same `params` object."""
        return [other for other in _notes.get(self.state, {}).values() if other.params is self.params]


class UpdateBatchStateCallback(_PositionCallback):
    """Callback that stores the number of completed batches of the epoch in `state.batch`, and 0 at its end.

    If Keras knows the number of steps in an epoch, the first epoch after a change of the world has only the remaining
    batches, but at least one.
    """

    def __init__(self, state: Any) -> None:
        super().__init__(state, "batch")
        self.steps_per_epoch: int | None = None
        self._first = 0
        self._is_first_epoch = True

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        self._is_first_epoch = True
        self.steps_per_epoch = (self.params or {}).get("steps")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._first = int(self.state.batch) if self._is_first_epoch else 0
        self._is_first_epoch = False

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = self._first + batch + 1
        if self._first and self.epoch_ends(batch):
            self.model.stop_training = self._end_of_epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = 0
        if self.model.stop_training is self._end_of_epoch:
            self.model.stop_training = False

    def epoch_ends(self, batch: int) -> bool:
        """Return whether `batch` is the last of the epoch; False if the number of batches is unknown."""
        return self.steps_per_epoch is not None and self._first + batch + 1 >= self.steps_per_epoch

    # Ends Keras' loop over batches. Another callback that ends the training overwrites it with True.
    _end_of_epoch: Final = "this epoch has no more batches"


class UpdateEpochStateCallback(_PositionCallback):
    """Callback that stores the number of completed epochs in `state.epoch`, also if `fit` starts again from 0."""

    def __init__(self, state: Any) -> None:
        super().__init__(state, "epoch")
        self.initial_epoch = int(state.epoch)
        self._first: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        self.initial_epoch = int(self.state.epoch)
        self._first = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._first = epoch if self._first is None else self._first

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch = self.initial_epoch + epoch - (self._first or 0) + 1
