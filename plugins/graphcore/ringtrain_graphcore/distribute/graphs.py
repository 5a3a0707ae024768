"""Construction of an Estimator's graphs for training, evaluation and prediction from the user's functions."""

import copy
import functools
import inspect
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ringtrain.errors import ConfigurationError, counted, kind_of
from ringtrain_graphcore.distribute.specs import EstimatorSpec, RunConfig
from ringtrain_graphcore.distribute.strategy import HorovodStrategy
from ringtrain_tensorflow.keras.api import IS_KERAS_2
from ringtrain_tensorflow.operation import OPERATION

_ADDITIONS = frozenset({"AssignAdd", "AssignAddVariableOp"})


@dataclass(frozen=True)
class EstimatorModelFunction:
    """The user's `model_fn`, and the values of its optional arguments `params` and `config`."""

    function: Callable[..., EstimatorSpec]
    params: Mapping[str, Any]
    config: RunConfig

    def build(self, strategy: HorovodStrategy, mode: str, elements: Any) -> EstimatorSpec:
        """Call `model_fn` for (features, labels) or features, and return its result. Raises ConfigurationError for a
        wrong result, or if it has no argument for labels."""
        features, labels = elements if isinstance(elements, tuple) and len(elements) == 2 else (elements, None)
        given = supported_arguments(self.function, {"labels": labels, "mode": mode, **self._own()})
        if labels is not None and "labels" not in given:
            raise ConfigurationError("input_fn returns labels, but model_fn has no argument `labels`")
        with strategy.scope(), _explain_keras_3_errors():
            spec = self.function(features, **given)
        if not isinstance(spec, EstimatorSpec):
            raise ConfigurationError(f"model_fn returned {kind_of(spec)}; expected an EstimatorSpec")
        if spec.mode != mode:
            raise ConfigurationError(f"model_fn returned a spec of mode {spec.mode!r}; expected {mode!r}")
        return spec

    def input_of(
        self, input_fn: Callable[..., Any], mode: str, context: tf.distribute.InputContext | None = None
    ) -> Any:
        """Return the tensors of one batch of `input_fn`, after calling it with those of the arguments `mode`, `params`,
        `config` and `input_context` that it has."""
        offered = {"mode": mode, "input_context": context or tf.distribute.InputContext(), **self._own()}
        found = input_fn(**supported_arguments(input_fn, offered))
        if not isinstance(found, tf.data.Dataset):
            return found
        iterator = tf.compat.v1.data.make_initializable_iterator(found)
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        return iterator.get_next()

    def _own(self) -> dict[str, Any]:
        return {"params": copy.deepcopy(dict(self.params)), "config": self.config}


def supported_arguments(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `offered` that `function` accepts as arguments and `functools.partial` has not bound."""
    bound = function.keywords if isinstance(function, functools.partial) else {}
    known = inspect.signature(function).parameters
    return {name: value for name, value in offered.items() if name in known and name not in bound}


@contextmanager
def _explain_keras_3_errors() -> Iterator[None]:
    """Context that adds a solution to errors of Keras 3, which cannot create variables in a graph."""
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        # An optimizer of tf.compat.v1.train reads this attribute of a variable, and a variable of Keras 3 lacks it.
        is_of_keras = any(f"{os.sep}keras{os.sep}" in frame.filename for frame in frames)
        if IS_KERAS_2 or not (is_of_keras or "_in_graph_mode" in str(error)):
            raise
        raise ConfigurationError(
            "model_fn uses Keras 3, which can't be used in a tf.compat.v1 graph "
            f"({type(error).__name__}: {error}); run the script with TF_USE_LEGACY_KERAS=1 and the package "
            "tf_keras, so that tf.keras is Keras 2, which supports graphs"
        ) from error


def training_operation(spec: EstimatorSpec, strategy: HorovodStrategy, graph: Any, global_step: Any) -> Any:
    """Return the operation that runs one step and increases the global step. Raises ConfigurationError if it would not
    exchange gradients with other ranks."""
    operations = [] if spec.train_op is None else [spec.train_op]
    if spec.host_call is not None:
        function, gradients = spec.host_call
        reduced = strategy.reduce_gradients(gradients)
        operations.append(strategy.on_host(lambda: function(*reduced)))
    elif strategy.num_replicas_in_sync > 1 and not _has_estimator_collectives(graph):
        raise ConfigurationError(
            f"train_op exchanges no data with {counted(strategy.num_replicas_in_sync - 1, 'other rank')}: each would "
            "train a model of its own. Give host_call=(fn, gradients), use strategy.apply_gradients, or "
            "ringtrain.tensorflow.DistributedOptimizer"
        )
    if any(operation is None for operation in operations):
        raise ConfigurationError(
            "the function of host_call returned None; expected the operation that updates the weights"
        )
    if any(op.type in _ADDITIONS and op.inputs[0].op is global_step.handle.op for op in graph.get_operations()):
        return tf.group(*operations)
    with tf.control_dependencies([tf.group(*operations)]):
        return tf.group(global_step.assign_add(1, read_value=False))


def _has_estimator_collectives(graph: Any) -> bool:
    """Return whether the graph, or a function in it, contains a collective of Ringtrain."""
    definition = graph.as_graph_def()
    bodies = [definition.node, *(function.node_def for function in definition.library.function)]
    return any(node.op == OPERATION for nodes in bodies for node in nodes)
