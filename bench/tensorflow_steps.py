"""One training step of TensorFlow: with our tape or optimizer, and in TensorFlow's own strategy for many workers.

The backward pass hands over gradients of ResNet-50's 161 parameters that exist already. All update by AdamW of
Keras 2 (TF_USE_LEGACY_KERAS): a model of Keras 3.15 can't be trained in a strategy for many workers.
"""

import functools
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from bench.steps import resnet50_shapes, sleep_until

Work = Callable[[], None]
# How often a paced backward pass hands out gradients.
_PACES = 40


@functools.cache  # a process may be asked for several kinds of step
def one_thread(pacing: bool = False) -> None:
    """As many as ranks have on two cores. `pacing`: and one that sleeps. Before TensorFlow does anything."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2 if pacing else 1)


def own_strategy(addresses: list[str], rank: int) -> Any:
    """MultiWorkerMirroredStrategy over its ring of gRPC. Before TensorFlow does anything."""
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def meeting(strategy: Any) -> Work:
    """Return a function that blocks until all workers have called it."""

    @tf.function
    def met() -> Any:
        one = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0)))
        return strategy.experimental_local_results(one)

    return lambda: met() and None


def paced(gradients: list[Any], backward_s: float) -> list[Any]:
    """`gradients`, the last one first, as a backward pass of `backward_s` without load hands them out."""
    if not backward_s:
        return [tf.identity(gradient) for gradient in gradients]
    began = [0.0]

    def sleep(share: Any) -> Any:
        if share == 0.0:
            began[0] = time.perf_counter()
        sleep_until(began[0] + backward_s * float(share))
        return share

    def after(share: float, before: list[Any]) -> Any:
        with tf.control_dependencies(before):
            return tf.py_function(sleep, [tf.constant(share)], tf.float32)

    total, done, slept = sum(int(np.prod(g.shape)) for g in gradients), 0, after(0.0, [])
    since, given = 0, []
    for gradient in reversed(gradients):
        done += int(np.prod(gradient.shape))
        if done - since > total / _PACES or done == total:
            since, slept = done, after(done / total, [slept])
        with tf.control_dependencies([slept]):
            given.append(tf.identity(gradient))
    return given[::-1]


class HandOver(keras.layers.Layer):
    """A layer of all parameters. What it returns is 0, and gradients are there, or come within `backward_s`."""

    def __init__(self, backward_s: float = 0.0) -> None:
        super().__init__()
        self._backward_s = backward_s
        random = np.random.default_rng(0)
        # Tensors and not arrays, which every copy of a graph would hold.
        self._gradients = [tf.constant(random.standard_normal(shape, dtype=np.float32)) for shape in resnet50_shapes()]
        for index, gradient in enumerate(self._gradients):
            self.add_weight(f"p{index}", gradient.shape, initializer="ones")

    def call(self, inputs: Any) -> Any:
        @tf.custom_gradient
        def handed_over(*_weights: Any) -> Any:
            return tf.zeros((1, 1)), lambda _upstream: paced(self._gradients, self._backward_s)

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


def keras_step(wrapper: str = "", strategy: Any = None) -> Work:
    """`train_on_batch` of a compiled model: with an optimizer of `ringtrain.keras`, or in `strategy`."""
    if strategy is None:
        import ringtrain.keras as hvd

        model = _compiled(getattr(hvd, wrapper)(keras.optimizers.AdamW(1e-3)))
    else:
        with strategy.scope():
            model = _compiled(keras.optimizers.AdamW(1e-3))
    inputs, targets = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32)
    return lambda: model.train_on_batch(inputs, targets) and None


def overlapping_step(api: str, backward_s: float, alone: bool = False) -> Work:
    """A step of ours whose backward pass takes `backward_s`, on the way `api`: tape, keras, host or v1.

    `alone`: without an exchange."""
    import ringtrain.keras
    import ringtrain.tensorflow as hvd

    if api == "keras":
        plain = keras.optimizers.AdamW(1e-3)
        model = _compiled(plain if alone else ringtrain.keras.DistributedOptimizer(plain), backward_s)
        inputs, targets = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32)
        return lambda: model.train_on_batch(inputs, targets) and None
    if api == "v1":
        return _session_step(backward_s, alone)
    layer, optimizer, strategy = HandOver(backward_s), keras.optimizers.AdamW(1e-3), hvd.HostStrategy()
    layer.build((1, 1))
    optimizer.build(layer.trainable_variables)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.zeros((1, 1))))
        weights = layer.trainable_variables
        if api == "tape" or alone:
            gradients = (tape if alone else hvd.DistributedGradientTape(tape)).gradient(loss, weights)
            optimizer.apply_gradients(zip(gradients, weights, strict=True))
        else:
            strategy.apply_gradients(optimizer, zip(tape.gradient(loss, weights), weights, strict=True))

    return lambda: step() and None


def _session_step(backward_s: float, alone: bool) -> Work:
    """A graph of tf.compat.v1, as an Estimator's host_call updates."""
    import ringtrain.tensorflow as hvd

    v1, strategy = tf.compat.v1, hvd.HostStrategy()
    graph = tf.Graph()
    with graph.as_default(), strategy.scope():
        random = np.random.default_rng(0)
        shapes = resnet50_shapes()
        weights = [v1.get_variable(f"p{i}", shape, initializer=v1.ones_initializer()) for i, shape in enumerate(shapes)]
        made = [
            v1.get_variable(f"g{i}", initializer=random.standard_normal(shape, dtype=np.float32), trainable=False)
            for i, shape in enumerate(shapes)
        ]
        gradients = paced([g.read_value() for g in made], backward_s)
        if not alone:
            gradients = strategy.reduce_gradients(gradients, weights)
        update = v1.train.AdamOptimizer(1e-3).apply_gradients(zip(gradients, weights, strict=True))
    config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
    session = v1.Session(graph=graph, config=config)
    with graph.as_default():
        session.run(v1.global_variables_initializer())
    return lambda: session.run(update)


def _compiled(optimizer: Any, backward_s: float = 0.0) -> Any:
    model = keras.Sequential([keras.Input((1,)), HandOver(backward_s)])
    model.compile(optimizer, loss="mse")
    return model
