"""Reductions end while the backward pass goes on: each check holds the pass until the first reduction has ended.

A layer in the middle has a gradient that waits until the timeline shows the end of the reduction of the layer
behind it, on this rank; or until the weights of that layer have been updated. Where gradients are submitted, or
waited for, at the end, that wait runs into its deadline.
"""

import fcntl
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

from support.ranks import DEADLINE_S, run_ranks

RUN_IN = [
    {"name": "keras-3", "framework": "keras"},
    {
        "name": "keras-2",
        "framework": "tf_keras",
        "env": {"TF_USE_LEGACY_KERAS": "1"},
        "tests": ["test_fit_of_keras", "test_a_host_strategy"],
    },
]

ENV = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "TF_NUM_INTEROP_THREADS": "4"}
WIDTH, STEPS = 64, 2


class Gate:
    """Holds a gradient back in each step until the reduction of another one has ended. `held`: in how many."""

    width = WIDTH

    def __init__(self) -> None:
        self.held = 0

    def watch(self, last: Any) -> None:
        """The variable whose gradient does not wait."""

    def open(self) -> bool:
        return gradients_reduced() >= 2 * self.held + 1

    def behind(self, x: Any) -> Any:
        """`x`, whose gradient waits. Each step reduces two weights, of which the last layer's does not wait."""
        import tensorflow as tf

        def wait(upstream: Any) -> Any:
            deadline = time.monotonic() + DEADLINE_S / 2
            while not self.open():
                assert time.monotonic() < deadline, "nothing has ended while the backward pass goes on"
                time.sleep(0.02)
            self.held += 1
            return upstream

        @tf.custom_gradient
        def held(y: Any) -> Any:
            def gradient(upstream: Any) -> Any:
                result = tf.py_function(wait, [upstream], upstream.dtype)
                result.set_shape(upstream.shape)
                return result

            return tf.identity(y), gradient

        return held(x)


class UpdateGate(Gate):
    """Holds it back until the weights of the last layer have been updated, which are of some megabytes."""

    width = 1024

    def watch(self, last: Any) -> None:
        self._last = getattr(last, "_value", last)  # of Keras 3 that of TensorFlow
        self._seen = self._now()

    def open(self) -> bool:
        before, self._seen = self._seen, self._now()
        return self._seen != before

    def _now(self) -> float:
        import tensorflow as tf

        with tf.init_scope():
            return float(self._last.read_value()[0, 0])


def gradients_reduced() -> int:
    """Return the number of finished gradient reductions on this rank, according to the timeline."""
    import ringtrain as rt

    with open(os.environ["RINGTRAIN_TIMELINE"]) as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # a read in the middle of a write finds no JSON
        events = json.load(file)
    reductions = [event for event in events if event["pid"] == rt.rank() and event["name"] == "ALLREDUCE"]
    return sum(event["args"]["tensor"].startswith("gradients.") for event in reductions)


def by_tape(gate: Gate) -> None:
    import tensorflow as tf

    import ringtrain.tensorflow as hvd

    first, last = _weights(tf, gate.width)
    gate.watch(last)

    @tf.function
    def step(x: Any) -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(gate.behind(x @ first) @ last)
        for grad, weight in zip(tape.gradient(loss, [first, last]), (first, last), strict=True):
            weight.assign_sub(0.1 * grad)

    for _ in range(STEPS):
        step(tf.ones([2, gate.width]))


def by_host_strategy(gate: Gate) -> None:
    import tensorflow as tf

    import ringtrain.tensorflow as hvd

    strategy = hvd.HostStrategy()
    with strategy.scope():
        weights = _weights(tf, gate.width)
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.build(weights)
    gate.watch(weights[1])

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(gate.behind(x @ weights[0]) @ weights[1])
        strategy.apply_gradients(optimizer, zip(tape.gradient(loss, weights), weights, strict=True))

    for _ in range(STEPS):
        step(tf.ones([2, gate.width]))


def by_fit(gate: Gate) -> None:
    import numpy as np
    import tensorflow as tf

    import ringtrain.keras as hvd

    keras = tf.keras
    keras.utils.set_random_seed(0)  # ranks that begin with other weights are told

    class Held(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return gate.behind(x)

    dense = lambda: keras.layers.Dense(gate.width, use_bias=False)  # noqa: E731
    model = keras.Sequential([keras.Input((gate.width,)), dense(), Held(), dense()])
    gate.watch(model.trainable_variables[1])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse", jit_compile=False)
    rows = np.ones((2 * STEPS, gate.width), "float32")
    model.fit(rows, rows, batch_size=2, epochs=1, verbose=0)


def by_estimator(gate: Gate) -> None:
    import tensorflow as tf

    from ringtrain.tensorflow import distribute

    v1 = tf.compat.v1

    def model_fn(features: Any, mode: str) -> Any:
        weights = [v1.get_variable(name, initializer=tf.ones([WIDTH, WIDTH])) for name in "ab"]
        loss = tf.reduce_mean(gate.behind(features @ weights[0]) @ weights[1])
        optimizer = v1.train.GradientDescentOptimizer(0.1)

        def update(*gradients: Any) -> Any:
            return optimizer.apply_gradients(zip(gradients, weights, strict=True))

        return distribute.EstimatorSpec(mode, loss=loss, host_call=(update, tf.gradients(loss, weights)))

    with tempfile.TemporaryDirectory() as folder:
        config = distribute.RunConfig(log_step_count_steps=None, save_summary_steps=None)
        made = distribute.Estimator(model_fn, folder, config)
        made.train(lambda: tf.data.Dataset.from_tensors(tf.ones([2, WIDTH])).repeat(), max_steps=STEPS)


def by_v1_optimizer(gate: Gate) -> None:
    import tensorflow as tf

    import ringtrain.tensorflow as hvd

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        weights = [v1.get_variable(name, initializer=tf.ones([WIDTH, WIDTH])) for name in "ab"]
        loss = tf.reduce_mean(gate.behind(tf.ones([2, WIDTH]) @ weights[0]) @ weights[1])
        update = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1)).minimize(loss)
        session.run(v1.global_variables_initializer())
        for _ in range(STEPS):
            session.run(update)


def _weights(tf: Any, width: int = WIDTH) -> list[Any]:
    return [tf.Variable(tf.ones([width, width])) for _ in range(2)]


def _held_by(way: Callable[[Gate], None], kind: type[Gate]) -> int:
    import ringtrain.tensorflow as hvd

    hvd.init()
    gate = kind()
    way(gate)
    return gate.held


def _check(way: Callable[[Gate], None], kind: type[Gate] = Gate) -> None:
    with tempfile.TemporaryDirectory() as folder:
        env = {**ENV, "RINGTRAIN_TIMELINE": f"{folder}/timeline.json"}
        found = run_ranks(_held_by, 2, way, kind, env=env, context=multiprocessing.get_context("fork"))
    assert found == [STEPS, STEPS]


def test_the_tape_in_a_function():
    _check(by_tape)


def test_a_host_strategy():
    _check(by_host_strategy)


def test_fit_of_keras():
    _check(by_fit)


def test_host_call_of_an_estimator():
    _check(by_estimator)


def test_an_optimizer_of_tf_compat_v1():
    _check(by_v1_optimizer)


def test_updates_in_a_function():
    """The last layer's weights are updated while the backward pass computes the first one's gradient."""
    _check(by_tape, UpdateGate)


def test_updates_in_fit():
    _check(by_fit, UpdateGate)


def _step_after_one_that_failed() -> str:
    """Both ranks' step fails, on rank 0 when its last layer's gradient is under way, on rank 1 before it."""
    import pytest
    import tensorflow as tf

    import ringtrain as rt
    import ringtrain.tensorflow as hvd
    from ringtrain._core.negotiation.queues import queue_of

    hvd.init()
    first, last = _weights(tf)
    failures = []

    def fail(upstream: Any) -> Any:
        if failures:  # in the second step nothing else may fail
            return upstream
        failures.append(upstream)
        deadline = time.monotonic() + DEADLINE_S / 2
        while not queue_of(hvd.global_process_set).in_flight():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        raise ValueError("a bad batch")

    def check(x: Any) -> Any:
        if hvd.rank() == 1:
            raise ValueError("a bad batch")
        return x

    @tf.custom_gradient
    def failing(x: Any) -> Any:
        return tf.identity(x), lambda upstream: tf.ensure_shape(tf.py_function(fail, [upstream], tf.float32), x.shape)

    @tf.function
    def step(x: Any) -> Any:
        x = tf.ensure_shape(tf.py_function(check, [x], tf.float32), [2, WIDTH])
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(failing(x @ first) @ last)
        return tape.gradient(loss, [first, last])

    for _ in range(2):
        with pytest.raises(tf.errors.OpError) as caught:
            step(tf.ones([2, WIDTH]))
    rt.barrier()  # a rank that has left makes the gradient that is under way fail
    return str(caught.value)


def test_a_gradient_meets_none_of_another_step():
    """After a step that failed on a rank while its gradients were being reduced, that rank's next step is refused."""
    first, _ = run_ranks(_step_after_one_that_failed, 2, env=ENV, context=multiprocessing.get_context("fork"))
    assert "failed on this rank while 1 of its gradients were being reduced" in first
