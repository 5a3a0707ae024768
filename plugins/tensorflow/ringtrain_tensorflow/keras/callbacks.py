"""Keras callbacks for training on many ranks."""

import time
import warnings
import weakref
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

import ringtrain as rt
from ringtrain import global_process_set, timeline
from ringtrain.adapter import NamedCollective, NamedReduction, current_world
from ringtrain.errors import ConfigurationError
from ringtrain_tensorflow.gradients import identity
from ringtrain_tensorflow.keras.api import IS_KERAS_2, keras, variables_of
from ringtrain_tensorflow.keras.diloco import DiLoCo as DiLoCo
from ringtrain_tensorflow.keras.diloco import is_keras_number
from ringtrain_tensorflow.keras.host_optimizer import HostKerasMixin
from ringtrain_tensorflow.variables import broadcast_variables


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Callback that sends the weights and the optimizer state of `root_rank` to all ranks when training starts.

    Weights are sent before the first batch if the model is built by then. Weights and optimizer state are sent after
    the first batch in any case. `device`: accepted for compatibility with Horovod. `local_variables`: variables that
    are not sent. This callback also records batches in the timeline; the time between two batches counts as input.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Collection[Any] | None = None) -> None:
        super().__init__()
        self._root_rank = root_rank
        self._local = {identity(variable) for variable in local_variables or ()}
        self._done = False
        self._world: weakref.ref[Any] | None = None  # world of the last broadcast
        self._steps = 0
        self._step_began_ns = self._batch_began_ns = 0

    def register_local_var(self, var: Any) -> None:
        """Exclude `var` from the broadcast."""
        self._local.add(identity(var))

    def on_train_begin(self, logs: Any = None) -> None:
        if self._world is None or self._world() is not current_world():
            self._done, self._world = False, weakref.ref(current_world())
        if self.model.built and not self._done:
            self._send(self.model.variables)
        self._step_began_ns = time.perf_counter_ns()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._batch_began_ns = time.perf_counter_ns()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._steps += 1
        timeline.record_since(self._batch_began_ns, "batch", "batch")
        self._step_began_ns = timeline.step_ended(self._step_began_ns, self._steps)
        if not self._done:
            self._send([*self.model.variables, *variables_of(self.model.optimizer)])
            self._done = True

    def _send(self, variables: Collection[Any]) -> None:
        sent = {identity(variable): variable for variable in variables if is_keras_number(variable)}
        broadcast_variables([v for key, v in sent.items() if key not in self._local], self._root_rank)


class MetricAverageCallback(keras.callbacks.Callback):
    """Callback that replaces metrics by their average over all ranks at the end of each epoch. Later callbacks see the
    averages.

    `device`: accepted for compatibility with Horovod.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        names = sorted(name for name, value in (logs or {}).items() if isinstance(value, int | float | np.number))
        if not names or logs is None:
            return
        values = np.array([float(logs[name]) for name in names])
        how = NamedReduction("Average", global_process_set)
        (averaged,) = NamedCollective.allreduce(how, None, "metric_average").run([values])
        logs.update(zip(names, averaged.tolist(), strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Callback that sets the learning rate to `initial_lr * multiplier` from `start_epoch` until before `end_epoch`.

    `multiplier`: a number, or a function of the epoch. `staircase`: set the rate once per epoch; otherwise at every
    batch, with a fractional epoch. `momentum_correction`: when the rate changes, scale the velocities of an optimizer
    with momentum by the same ratio (Goyal et al. 2017). `steps_per_epoch`: detected if Keras knows it.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ConfigurationError("initial_lr is None; expected the learning rate at the start of training")
        self._initial_lr = initial_lr
        self._multiplier: Callable[[float], float] = multiplier if callable(multiplier) else lambda _: multiplier
        self._first, self._end = start_epoch, end_epoch
        self._staircase = staircase or not callable(multiplier)
        self._momentum_correction = momentum_correction
        self._steps = steps_per_epoch
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        if not self._staircase and not self._steps:
            self._steps = (self.params or {}).get("steps")
            if not self._steps:
                raise ConfigurationError(
                    f"{type(self).__name__}: the number of steps in an epoch is not known; pass steps_per_epoch"
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._epoch < self._first or (self._end is not None and self._epoch >= self._end):
            return
        if self._staircase and batch == 0:
            self._adjust(self._epoch)
        elif not self._staircase:
            self._adjust(self._epoch + batch / (self._steps or 1))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = _keras_learning_rate(self.model.optimizer)

    def _adjust(self, epoch: float) -> None:
        optimizer = _inner_optimizer(self.model.optimizer)
        old, new = _keras_learning_rate(optimizer), self._initial_lr * self._multiplier(epoch)
        optimizer.learning_rate = new
        if self._momentum_correction and old and getattr(optimizer, "momentum", 0):
            # Keras stores velocities multiplied by the rate: after a change of the rate they must be rescaled.
            _scale_velocities(optimizer, new / old)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Callback that increases the learning rate from `initial_lr / size` to `initial_lr` over `warmup_epochs`.

    Goyal et al. 2017, "Accurate, large minibatch SGD". `verbose`: print the rate at the end.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # The rate of a batch is that at its end, so that the last batch of the warm-up has the full rate.
            done = min(1.0, (epoch + 1.0 / (self._steps or 1)) / warmup_epochs) if warmup_epochs else 1.0
            return (1.0 + done * (rt.size() - 1)) / rt.size()

        end = int(np.ceil(warmup_epochs))
        super().__init__(initial_lr, multiplier, 0, end, False, momentum_correction, steps_per_epoch)
        self._verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self._end is not None and epoch == self._end - 1 and self._verbose:
            rate = _keras_learning_rate(self.model.optimizer)
            print(f"Epoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class GatherState(keras.callbacks.Callback):
    """Callback that gathers the state of a `HostOptimizer` on rank `root` (None: on all ranks), so that later callbacks
    such as `ModelCheckpoint` or `BackupAndRestore` can save it. Use it on every rank.

    `save_freq`: the same value as for the saving callback: "epoch", or a number of batches.
    """

    def __init__(self, root: int | None = 0, save_freq: str | int = "epoch") -> None:
        super().__init__()
        if save_freq != "epoch" and not (isinstance(save_freq, int) and save_freq > 0):
            raise ConfigurationError(
                f'GatherState: save_freq is {save_freq!r}; expected "epoch" or a number of batches'
            )
        self._root, self._save_freq, self._batches = root, save_freq, 0
        self._last_batch = -1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._last_batch = -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._save_freq == "epoch":
            return
        self._batches += batch - self._last_batch  # more than one with steps_per_execution
        self._last_batch = batch
        if self._batches >= int(self._save_freq):
            self._batches = 0
            self._gather()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._save_freq == "epoch":
            self._gather()

    def _gather(self) -> None:
        optimizer = _inner_optimizer(self.model.optimizer)
        if isinstance(optimizer, HostKerasMixin):
            optimizer.gather_state(self._root)


class Report(keras.callbacks.Callback):
    """Callback that reports step, epoch and loss to the launcher after each batch, like `ringtrain.report`.

    `samples`: number of samples in a batch of this rank, for the throughput, counted in `unit`.
    """

    def __init__(self, samples: int | None = None, unit: str = "samples") -> None:
        super().__init__()
        self._samples, self._unit = samples, unit
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        steps = self.params.get("steps")  # None if the first epoch of a dataset is not complete yet
        rt.report(
            step=(self._epoch * steps if steps else 0) + batch + 1,
            epoch=self._epoch,
            samples=self._samples,
            loss=None if logs is None or "loss" not in logs else float(logs["loss"]),
            unit=self._unit,
            total_steps=steps * self.params["epochs"] if steps else None,
        )


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Callback that saves the model whenever `monitor` reaches a new best value; on rank 0 only.

    `filepath`: target (default: `best_model.keras`, or `best_model.weights.h5` for weights alone). To average the
    metric over ranks, put `MetricAverageCallback` before this callback.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: str | None = None,
    ) -> None:
        default = "best_model.weights.h5" if save_weights_only else "best_model.keras"
        super().__init__(
            filepath=filepath or default,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )

    def _save_model(self, epoch: int, batch: int | None, logs: Any) -> None:
        if rt.rank() == 0:
            super()._save_model(epoch, batch, logs)


def _keras_learning_rate(optimizer: Any) -> float:
    rate = optimizer.learning_rate
    if callable(rate) and not hasattr(rate, "numpy"):
        warnings.warn("the optimizer's learning rate follows a schedule; a callback cannot set it", stacklevel=2)
    return float(keras.backend.get_value(rate) if IS_KERAS_2 else keras.ops.convert_to_numpy(rate))


def _inner_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside a LossScaleOptimizer, or `optimizer` if it is not one."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _scale_velocities(optimizer: Any, factor: float) -> None:
    if isinstance(optimizer, HostKerasMixin):
        optimizer.scale_velocities(factor)
        return
    for velocity in _keras_velocities(optimizer):
        velocity.assign(velocity * factor)


def _keras_velocities(optimizer: Any) -> list[Any]:
    if hasattr(optimizer, "get_slot"):  # the legacy optimizers of Keras 2
        return [state for state in optimizer.weights if "/momentum" in state.name]
    # SGD's are public, those of RMSprop are not.
    return list(getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or ())
