"""Elastic training with TensorFlow, with the names of `horovod.tensorflow.elastic`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringtrain.errors import ConfigurationError
from ringtrain_tensorflow.elastic_state import SessionVariablesHandler, VariablesHandler, VariablesState, run
from ringtrain_tensorflow.keras.elastic_state import TensorFlowKerasState

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


class _Variables(list[Any]):
    """List of variables that has its own state handler."""


class TensorFlowState(VariablesState):
    """Elastic state with a list of variables and plain values.

        state = TensorFlowState(model.variables + optimizer.variables, batch=0, epoch=0)

    `variables`: variables of TensorFlow or Keras; in a `tf.compat.v1` graph the default is all global variables of the
    graph. `session`: session of such a graph (default: the default session). For other arguments see
    `ringtrain.elastic.State`.
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        held = _Variables(tf.compat.v1.global_variables() if variables is None else variables)
        if not held:
            raise ConfigurationError(
                "TensorFlowState has no variables; pass the variables of model and optimizer (model.variables + "
                "optimizer.variables): outside of tf.compat.v1 graphs TensorFlow has no list of variables"
            )
        used = None if tf.executing_eagerly() else session or tf.compat.v1.get_default_session()
        if used is None and not tf.executing_eagerly():
            raise ConfigurationError(
                "TensorFlowState: no session is open; pass session=..., or create the TensorFlowState inside a session"
            )

        def keep(value: Any) -> VariablesHandler:
            return VariablesHandler(value) if used is None else SessionVariablesHandler(value, used)

        super().__init__(handlers=[(_Variables, keep)], variables=held, **kwargs)
        self.session = used
