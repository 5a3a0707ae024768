"""Training of Keras models over slow links: ranks train alone, and average their weight changes every many batches."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import ringtrain as rt
from ringtrain.adapter import Array
from ringtrain.errors import ConfigurationError
from ringtrain_tensorflow.gradients import identity
from ringtrain_tensorflow.keras.api import keras
from ringtrain_tensorflow.keras.optimizer import DistributedKerasMixin
from ringtrain_tensorflow.variables import broadcast_variables


class _TrainedVariables:
    """Access for the DiLoCo optimizer to a model's variables, by name."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self._variables = variables

    def read(self, names: Sequence[str]) -> Sequence[Array]:
        return [np.asarray(self._variables[name].numpy()) for name in names]

    def write(self, name: str, values: Array) -> None:
        self._variables[name].assign(values)


class DiLoCo(keras.callbacks.Callback):
    """Callback for slow links: each rank trains alone, and every `sync_every` batches ranks average their changes.

        model.compile(keras.optimizers.AdamW(4e-4), loss=loss)
        model.fit(data, callbacks=[DiLoCo(outer=Nesterov(lr=0.7, momentum=0.9), sync_every=100)])

    `options`: options of `ringtrain.diloco.DiLoCo` (outer, sync_every, fragments, overlap_steps, mix, compression,
    bucket_bytes). `fit` begins with the weights of rank 0 on all ranks. It ends with the outer weights on all ranks,
    and with variables of rank 0 that are not trained, such as the averages of BatchNormalization. Each `fit` makes a
    new outer optimizer. `outer`: the `ringtrain.diloco.DiLoCo` of the last `fit`, which counts synchronizations.

    All ranks call `fit` with the same callback and the same number of batches, otherwise MismatchError is raised.
    Raises ConfigurationError for an optimizer that averages gradients itself, for `elastic`, for `sites` other than (),
    and if `steps_per_execution` does not divide `sync_every`. Raises ModuleNotFoundError without the plugin diloco. It
    is experimental.
    """

    def __init__(self, **options: Any) -> None:
        from ringtrain.diloco import DiLoCo as ArrayDiLoCo  # a plugin: without it this raises what to install

        super().__init__()
        if options.get("elastic") or options.get("sites"):
            raise ConfigurationError(
                "DiLoCo: Keras supports neither elastic=True nor sites; expected elastic=False and sites=()"
            )
        self._options = options
        self._make = ArrayDiLoCo
        self.outer: ArrayDiLoCo | None = None
        self._made = 0  # steps of the model's optimizer

    def on_train_begin(self, logs: Any = None) -> None:
        if isinstance(self.model.optimizer, DistributedKerasMixin):
            raise ConfigurationError(
                f"DiLoCo: the model has a {type(self.model.optimizer).__name__} of ringtrain, which averages in "
                "each batch; compile the model with an optimizer of Keras"
            )
        if not self.model.built:
            raise ConfigurationError("DiLoCo: the model has no weights yet; call build(), or add an Input layer")
        trained = {f"{place}": variable for place, variable in enumerate(self.model.trainable_variables)}
        local = _TrainedVariables(trained)
        options = self._options
        if "sites" not in options and len(rt.sites()) > 1:
            raise ConfigurationError(
                f"DiLoCo: this world has the sites {', '.join(rt.sites())}, but DiLoCo of Keras supports no sites; "
                "pass sites=() to train each rank alone"
            )
        self.outer = self._make(local, initial=dict(zip(trained, local.read(list(trained)), strict=True)), **options)
        self._made = int(self.model.optimizer.iterations)
        self._send_the_rest()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        assert self.outer is not None
        before, self._made = self._made, int(self.model.optimizer.iterations)
        made = max(1, self._made - before)  # 0 if a LossScaleOptimizer skipped the step
        every = self.outer.sync_every
        if every % made:
            raise ConfigurationError(
                f"DiLoCo: Keras took {made} steps at once and sync_every is {every}; expected steps_per_execution to "
                "divide sync_every"
            )
        for _ in range(made):
            self.outer.step()

    def on_train_end(self, logs: Any = None) -> None:
        assert self.outer is not None
        self.outer.finish()
        self.outer.close()
        self._send_the_rest()

    def _send_the_rest(self) -> None:
        trained = {identity(variable) for variable in self.model.trainable_variables}
        rest = [one for one in self.model.variables if identity(one) not in trained and is_keras_number(one)]
        broadcast_variables(rest, 0)


def is_keras_number(variable: Any) -> bool:
    """Return whether ranks can exchange `variable`. They cannot exchange uint32, the state of random generators."""
    dtype = getattr(variable.dtype, "name", variable.dtype)  # Keras 3 uses strings
    return str(dtype) in (
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "int32",
        "int64",
        "uint8",
        "int8",
        "bool",
    )
