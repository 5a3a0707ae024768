"""One training step of TensorFlow: with our tape or optimizer, and in TensorFlow's own strategy for many workers.

The backward pass hands over gradients of ResNet-50's 161 parameters that exist already. All update by AdamW of
Keras 2 (TF_USE_LEGACY_KERAS): a model of Keras 3.15 can't be trained in a strategy for many workers.
"""

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from bench.steps import resnet50_shapes

Work = Callable[[], None]


def one_thread() -> None:
    """As many as ranks have on two cores. Before TensorFlow does anything."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def own_strategy(addresses: list[str], rank: int) -> Any:
    """MultiWorkerMirroredStrategy over its ring of gRPC. Before TensorFlow does anything."""
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def meeting(strategy: Any) -> Work:
    """What returns when all workers have called it."""

    @tf.function
    def met() -> Any:
        one = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0)))
        return strategy.experimental_local_results(one)

    return lambda: met() and None


class HandOver(keras.layers.Layer):
    """A layer of all parameters. What it returns is 0, and the gradients are there."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(0)
        # Tensors and not arrays, which every copy of a graph would hold.
        self._gradients = [
            tf.constant(random.standard_normal(shape, dtype=np.float32)) for shape in resnet50_shapes()
        ]
        for index, gradient in enumerate(self._gradients):
            self.add_weight(f"p{index}", gradient.shape, initializer="ones")

    def call(self, inputs: Any) -> Any:
        @tf.custom_gradient
        def handed_over(*_weights: Any) -> Any:
            return tf.zeros((1, 1)), lambda _upstream: [tf.identity(gradient) for gradient in self._gradients]

        return handed_over(*[tf.convert_to_tensor(weight) for weight in self.trainable_weights]) + 0.0 * inputs


def tape_step(strategy: Any = None) -> Work:
    """A training loop of one's own: with `DistributedGradientTape`, or in `strategy`."""
    if strategy is None:
        import ringtrain.tensorflow as hvd

        model, optimizer = HandOver(), keras.optimizers.AdamW(1e-3)
        model.build((1, 1))
        taped = hvd.DistributedGradientTape
    else:
        with strategy.scope():
            model, optimizer = HandOver(), keras.optimizers.AdamW(1e-3)
            model.build((1, 1))
            optimizer.build(model.trainable_variables)
        taped = lambda tape: tape  # noqa: E731
    inputs = tf.zeros((1, 1))

    def forward_and_back() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(inputs))
        gradients = taped(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function
    def step() -> None:
        forward_and_back() if strategy is None else strategy.run(forward_and_back)

    return lambda: step() and None


def keras_step(strategy: Any = None) -> Work:
    """`train_on_batch` of a compiled model: with `DistributedOptimizer`, or in `strategy`."""
    if strategy is None:
        import ringtrain.keras as hvd

        model = _compiled(hvd.DistributedOptimizer(keras.optimizers.AdamW(1e-3)))
    else:
        with strategy.scope():
            model = _compiled(keras.optimizers.AdamW(1e-3))
    inputs, targets = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32)
    return lambda: model.train_on_batch(inputs, targets) and None


def _compiled(optimizer: Any) -> Any:
    model = keras.Sequential([keras.Input((1,)), HandOver()])
    model.compile(optimizer, loss="mse")
    return model
