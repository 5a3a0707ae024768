"""Checks that ranks of TensorFlow's and Keras' distributed optimizers compare their variables, on every rank."""

import functools
import time

import pytest
import tensorflow as tf
from tensorflow import keras
from test_tensorflow_training import RANK, SIZE, batch, network, stepper

import ringtrain.tensorflow as hvd
import ringtrain.tensorflow.keras as in_keras
from ringtrain.optim.memory_check import EVERY
from ringtrain.optim.replicas import PARTS

RUN_IN = [
    {"framework": "keras", "ranks": [3]},
    {
        "framework": "keras",
        "ranks": [1],
        "tests": ["test_a_wrong_rate_is_found", "test_a_step_that_fails_counts_on_no_rank"],
    },
    {"framework": "keras", "ranks": [2], "tests": ["test_other_values_of_a_rank_are_found"]},
]

ODD = SIZE - 1
MOST_UPDATES = PARTS * EVERY + EVERY + 1


def eagerly(model, optimizer):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        grads = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))

    return step


def in_graphs(model, optimizer):
    return stepper(model, optimizer, hvd.DistributedGradientTape)


def by_optimizer(model, optimizer):
    return stepper(model, in_keras.DistributedOptimizer(optimizer))


STEPPERS = {"tape": eagerly, "graph": in_graphs, "optimizer": by_optimizer}


def steps(step, first: int, behind: int) -> None:
    for number in range(first, behind):
        step(*batch(RANK, number))


def raises_on_every_rank(trains, words: str) -> None:
    if SIZE == 1:
        trains()
        return
    with pytest.raises((RuntimeError, tf.errors.OpError)) as raised:
        trains()
    assert words in str(raised.value), raised.value


def test_other_values_of_a_rank_are_found():
    """Other values are found with a tape, eagerly and in a graph, and with a Keras optimizer, in any variable."""
    for kind, make in STEPPERS.items():
        model = network()
        step = make(model, keras.optimizers.SGD(0.01))
        steps(step, 0, 3)
        if RANK == ODD:
            value = model.trainable_variables[-1]
            value.assign(value + tf.eye(1, 2)[0] * 1e-4)
        one, two = (
            f"the weights on ranks [{ODD}] differed from those of the others",
            "ranks [0, 1] had different weights",
        )
        words = one if SIZE > 2 else two  # of two ranks neither is in the majority
        raises_on_every_rank(functools.partial(steps, step, 3, 3 + MOST_UPDATES), words), kind


def test_a_wrong_rate_is_found():
    """One rank has set another rate before the steps of a graph."""
    model = network()
    rate = 0.02 if RANK == ODD else 0.01
    step = by_optimizer(model, keras.optimizers.SGD(rate))
    words = f"on rank 0 and [{tf.constant(0.02).numpy().item()}] on rank {ODD}"
    raises_on_every_rank(lambda: steps(step, 0, 2), words)


def test_a_write_that_needs_no_gradient_comes_after_the_comparison():
    """Weight decay of Keras' AdamW is one. Of one rank it is done before that rank has a gradient, of the others
    after they have their sums."""
    weight = tf.Variable(tf.ones([4]))
    before = [1.0]

    def wait(grad):
        deadline = time.monotonic() + 60
        while now() == before[0]:
            assert time.monotonic() < deadline, "no decay"
        return grad

    def now():
        with tf.init_scope():
            return float(weight.read_value()[0])

    @tf.custom_gradient
    def held(x):
        def gradient(grad):
            result = tf.py_function(wait, [grad], tf.float32) if RANK == ODD else grad
            return tf.ensure_shape(result, grad.shape)

        return tf.identity(x), gradient

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(held(weight))
        (grad,) = hvd.DistributedGradientTape(tape).gradient(loss, [weight])
        with tf.control_dependencies([] if RANK == ODD else [grad]):
            weight.assign_sub(0.01 * weight)
        weight.assign_sub(0.1 * grad)

    for _ in range(3):
        before[0] = now()
        step()


def test_a_step_that_fails_counts_on_no_rank():
    """One rank's fails at its start, the others' when variables were looked at already: later updates are compared
    on all ranks alike."""
    weight = tf.Variable(tf.ones([4]))
    batches = []

    def passed(x):
        if batches[-1] == "bad":
            raise ValueError("a bad batch")
        return x

    def checked(x):
        return tf.ensure_shape(tf.py_function(passed, [x], tf.float32), x.shape)

    @tf.custom_gradient
    def late(x):
        return tf.identity(x), lambda grad: grad if RANK == ODD else checked(grad)

    @tf.function
    def step():
        zeros = tf.zeros([4])
        weight.assign_add(checked(zeros) if RANK == ODD else zeros)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(late(weight))
        (grad,) = hvd.DistributedGradientTape(tape).gradient(loss, [weight])
        weight.assign_sub(0.1 * grad)

    for number in range(2 * EVERY + 3):
        batches.append("bad" if number in (1, EVERY - 1) else "good")
        if batches[-1] == "bad":
            with pytest.raises(tf.errors.OpError):
                step()
        else:
            step()


def test_variables_of_a_ranks_own_are_not_compared():
    """Local layers, frozen variables, and a model of a process set of one rank."""
    model = network()
    for index, layer in enumerate(model.layers):
        if index != 1:
            layer.set_weights([weights + RANK for weights in layer.get_weights()])
    model.layers[0].trainable = False
    local = in_keras.PartialDistributedOptimizer(keras.optimizers.SGD(0.01), local_layers=[model.layers[2]])
    steps(stepper(model, local), 0, MOST_UPDATES)
    if SIZE > 1:
        alone = hvd.add_process_set([ODD])
        if RANK == ODD:
            own = in_keras.DistributedOptimizer(keras.optimizers.SGD(0.5), process_set=alone)
            steps(stepper(network(seed=RANK), own), 0, MOST_UPDATES)
        hvd.remove_process_set(alone)


def test_two_models_of_a_step_are_compared_each():
    """Tapes of one name: that of the second model is found, too, and where a rank joins counting begins anew."""
    models = [network(), network(seed=1)]
    both = [eagerly(model, keras.optimizers.SGD(0.01)) for model in models]
    for number in range(5 + RANK):
        both[0](*batch(RANK, number))
    hvd.join()
    hvd.broadcast_variables(models[0].variables, root_rank=ODD)
    if RANK == ODD:
        value = models[1].trainable_variables[0]
        value.assign(value + 1.0)

    def trains() -> None:
        for number in range(MOST_UPDATES):
            for step in both:
                step(*batch(RANK, number))

    raises_on_every_rank(trains, "the weights on ranks")
