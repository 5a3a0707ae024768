"""A Keras model and its optimizer as an elastic state."""

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
    """Handler for a Keras model's variables."""

    def variables(self) -> Sequence[Any]:
        return list(self.value.variables)


class KerasOptimizerHandler(VariablesHandler):
    """Handler for a Keras optimizer's variables, including its step count and learning rate."""

    def variables(self) -> Sequence[Any]:
        return variables_of(self.value)

    def sync(self, root: int = 0) -> None:
        super().sync(root)
        self.refresh()

    def refresh(self) -> None:
        """Restart an update of several backward passes, because passes of lost ranks are lost."""
        if isinstance(self.value, DistributedKerasMixin):
            self.value.begin_passes()


class TensorFlowKerasState(VariablesState):
    """Elastic state of a Keras model and its optimizer, with plain values.

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
                "the model is not built, so that it has no variables to keep; call model.build(input_shape), or "
                "the model once with a batch, before it is made a state"
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
    """Create the optimizer's state: ranks that have trained have it, and new ranks need the same variables."""
    if getattr(optimizer, "built", False):
        return
    if hasattr(optimizer, "_create_all_weights"):  # the legacy optimizers of Keras 2
        optimizer._create_all_weights(model.trainable_variables)
    else:
        optimizer.build(model.trainable_variables)


def _host_optimizer_numbers(left: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Participant]:
    """Return participants for the learning rates and update counts of Keras' host optimizers."""
    return {
        f"{name}.variables": HandlerParticipant(KerasOptimizerHandler(value))
        for name, value in values.items()
        if isinstance(value, HostKerasMixin)
    }


register_extension(StateExtension(_host_optimizer_numbers))
