"""Elastic state (saved at commits, sent to new ranks) of a Keras model and its optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringtrain.adapter.state import HandlerParticipant, OptimizerParticipant
from ringtrain.elastic import Participant, StateExtension, register_extension
from ringtrain.errors import ConfigurationError, kind_of
from ringtrain_tensorflow.elastic_state import VariablesHandler, VariablesState
from ringtrain_tensorflow.keras.api import is_keras_optimizer, keras, variables_of
from ringtrain_tensorflow.keras.host_optimizer import HostKerasMixin
from ringtrain_tensorflow.keras.optimizer import DistributedKerasMixin
from ringtrain_tensorflow.keras_backend import check_backend


class KerasModelHandler(VariablesHandler):
    """Handler that saves, restores and sends the variables of a Keras model."""

    def variables(self) -> Sequence[Any]:
        return list(self.value.variables)


class KerasOptimizerHandler(VariablesHandler):
    """Handler that saves, restores and sends the variables of a Keras optimizer, with step count and learning rate."""

    def variables(self) -> Sequence[Any]:
        return variables_of(self.value)

    def sync(self, root: int = 0) -> None:
        super().sync(root)
        self.refresh()

    def refresh(self) -> None:
        """Discard accumulated gradients, because those of lost ranks are missing."""
        if isinstance(self.value, DistributedKerasMixin):
            self.value.begin_passes()


class TensorFlowKerasState(VariablesState):
    """Elastic state of a Keras model, its optimizer and plain values.

        state = TensorFlowKerasState(model, optimizer, batch=0, epoch=0)

    `model`: a built model. `optimizer`: default: the optimizer with which the model was compiled; its missing variables
    are created. `backend`: accepted for compatibility with Horovod. For other arguments see `ringtrain.elastic.State`.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        check_backend(keras)
        if not isinstance(model, keras.Model):
            raise ConfigurationError(f"model is {kind_of(model)}; expected a Keras model")
        if not model.built:
            raise ConfigurationError(
                "the model is not built, so it has no variables yet; call model.build(input_shape), or "
                "the model once with a batch, before you create the state"
            )
        chosen = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        if not is_keras_optimizer(chosen):
            raise ConfigurationError(
                f"optimizer is {kind_of(chosen)}; expected a Keras optimizer: pass optimizer=..., or compile the "
                "model with one"
            )
        _make_keras_variables(chosen, model)
        kind: Any = OptimizerParticipant if isinstance(chosen, HostKerasMixin) else KerasOptimizerHandler
        handlers = [(keras.Model, KerasModelHandler), (type(chosen), kind)]
        super().__init__(handlers=handlers, model=model, optimizer=chosen, **kwargs)
        self.backend = backend


def _make_keras_variables(optimizer: Any, model: Any) -> None:
    """Create the optimizer's variables if it has none, so that new ranks have the same ones as others."""
    if getattr(optimizer, "built", False):
        return
    if hasattr(optimizer, "_create_all_weights"):  # the legacy optimizers of Keras 2
        optimizer._create_all_weights(model.trainable_variables)
    else:
        optimizer.build(model.trainable_variables)


def _host_optimizer_numbers(left: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Participant]:
    """Return a participant of the elastic state for the variables of each Keras host optimizer in `values`.

    These are the update count and the learning rate. `left` has no effect.
    """
    return {
        f"{name}.variables": HandlerParticipant(KerasOptimizerHandler(value))
        for name, value in values.items()
        if isinstance(value, HostKerasMixin)
    }


register_extension(StateExtension(_host_optimizer_numbers))
