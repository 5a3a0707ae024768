"""Scenarios of ringtrain.tensorflow and ringtrain.keras in worlds that change while their processes run. Gradients are
chosen so that the weights show how often each step counted, and in which world size."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf
from frameworks.scenarios import forked_slots
from support.elastic_agent import Slots, pause

RUN_IN = [
    {
        "name": "keras-3",
        "framework": "keras",
        "tests": [
            "test_functions_go_on_in_worlds_of_other_sizes",
            "test_sessions_go_on_after_a_loss",
            "test_fit_goes_on_within_the_epoch",
            "test_passes_of_an_update_begin_anew",
            "test_a_host_optimizer_goes_on_in_worlds_of_other_sizes",
        ],
    },
    {
        "name": "keras-2",
        "framework": "tf_keras",
        "env": {"TF_USE_LEGACY_KERAS": "1"},
        "tests": [
            "test_fit_goes_on_within_the_epoch",
            "test_legacy_optimizers_are_kept",
            "test_a_host_optimizer_goes_on_in_worlds_of_other_sizes",
        ],
    },
]

ENV = {
    "RINGTRAIN_TIMEOUT": "60",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
}


def functions(steps: int, pauses: tuple[int, ...]) -> dict[str, Any]:
    """Train with a tape in a `tf.function`; one variable is each rank's own, its gradient divided by the ranks."""
    import ringtrain.tensorflow as hvd

    hvd.init()
    shared, own = tf.Variable(0.0), tf.Variable(0.0)
    optimizer = tf.keras.optimizers.SGD(1.0)
    optimizer.build([shared])

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = shared * x + own * 6.0
        tape = hvd.DistributedGradientTape(tape, gradient_predivide_factor=2.0)
        tape.register_local_source(own)
        grad, own_grad = tape.gradient(loss, [shared, own])
        optimizer.apply_gradients([(grad, shared)])
        own.assign_sub(own_grad)

    state = hvd.elastic.TensorFlowState([shared, own, *optimizer.variables], step=0, sizes=[])
    resets = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.step < steps:
            pause(state.step, pauses)
            step(tf.constant(hvd.rank() + 1.0))
            state.step += 1
            state.sizes = [*state.sizes, hvd.size()]
            state.commit()

    train(state)
    return {
        "shared": float(shared.numpy()),
        "own": float(own.numpy()),
        "updates": int(optimizer.iterations.numpy()),
        "sizes": state.sizes,
        "resets": resets,
        "traces": step.experimental_get_tracing_count(),
    }


def test_functions_go_on_in_worlds_of_other_sizes() -> None:
    """Graphs work in later worlds: 1, 2, 3 ranks, a loss, 2 ranks; each step counts once."""
    with slots(functions, 1, 8, (1, 2, 4, 6)) as worlds:
        worlds.form()
        for step, size in ((1, 2), (2, 3)):
            said(worlds, step, size - 1)
            worlds.start(size - 1)
            worlds.tell_change()
            # The step that had begun is committed before the world changes.
            worlds.form(*range(size - 1))
        said(worlds, 4, 3)
        worlds.kill(1)
        worlds.form(0, 2)
        said(worlds, 4, (0, 2))
        worlds.go_on(0, 2)
        said(worlds, 6, (0, 2))
        worlds.go_on(0, 2)
        results = worlds.results()
    assert sorted(results) == [0, 2]
    for result in results.values():
        assert result["sizes"] == [1, 1, 2, 3, 2, 2, 2, 2], result
        assert result["shared"] == -sum((size + 1) / 2 for size in result["sizes"]), result
        assert result["own"] == -sum(6 / size for size in result["sizes"]), result
        assert result["updates"] == 8, result
        assert result["traces"] == 1, result
    assert results[0]["resets"] == [2, 3, 2]
    assert results[2]["resets"] == [2]


def sessions(steps: int, pauses: tuple[int, ...]) -> dict[str, Any]:
    """Train in a session of `tf.compat.v1`."""
    import ringtrain.tensorflow as hvd

    v1 = tf.compat.v1
    v1.disable_eager_execution()
    hvd.init()
    x = v1.placeholder(tf.float32, [])
    shared = v1.get_variable("shared", [], initializer=v1.zeros_initializer())
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
    update = optimizer.minimize(shared * x)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session, step=0, sizes=[])

        @hvd.elastic.run
        def train(state: Any) -> None:
            while state.step < steps:
                pause(state.step, pauses)
                session.run(update, {x: hvd.rank() + 1.0})
                state.step += 1
                state.sizes = [*state.sizes, hvd.size()]
                state.commit()

        train(state)
        return {"shared": float(session.run(shared)), "sizes": state.sizes}


def test_sessions_go_on_after_a_loss() -> None:
    """The graph is the old one; the variables are those of the last committed step."""
    with slots(sessions, 2, 5, (2,)) as worlds:
        worlds.form()
        said(worlds, 2, 2)
        worlds.replace(0)
        worlds.form(1)
        said(worlds, 2, 2)
        worlds.go_on(0, 1)
        results = worlds.results()
    for result in results.values():
        assert result == {"shared": -1.5 * 5, "sizes": [2] * 5}


def fits(
    epochs: int, steps: int, pauses: tuple[tuple[int, int], ...], first: str, legacy: bool = False
) -> dict[str, Any]:
    """Train with Keras' `fit`; each step takes 1 from the weight. `first`: the callback that is first."""
    import ringtrain.tensorflow.keras as hvd

    hvd.init()
    keras = tf.keras
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([tf.zeros((1, 1)).numpy()])
    rules = keras.optimizers.legacy if legacy else keras.optimizers
    optimizer = hvd.DistributedOptimizer(rules.SGD(1.0))
    model.compile(optimizer=optimizer, loss=lambda _, predicted: tf.reduce_mean(predicted))
    ones = tf.ones((4, 1))
    data = tf.data.Dataset.from_tensors((ones, ones)).repeat()
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    seen = []

    class Witness(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            where = (int(state.epoch), int(state.batch))
            seen.append(where)
            pause(where, pauses)

    @hvd.elastic.run
    def train(state: Any) -> None:
        callbacks = [
            hvd.elastic.CommitStateCallback(state),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
        ]
        if first == "update":
            callbacks.reverse()
        # From 0 each time, or on from the epoch where it was: both are in use.
        spans = {"epochs": epochs - state.epoch} if first == "update" else {}
        spans = spans or {"initial_epoch": state.epoch, "epochs": epochs}
        state.model.fit(data, steps_per_epoch=steps, callbacks=[*callbacks, Witness()], verbose=0, **spans)

    train(state)
    return {
        "weight": float(model.get_weights()[0][0, 0]),
        "updates": int(optimizer.iterations.numpy()),
        "epoch": state.epoch,
        "batch": state.batch,
        "seen": seen,
    }


def test_fit_goes_on_within_the_epoch() -> None:
    """After a loss, and after a change at the end of an epoch; wherever the callbacks stand."""
    for first in ("commit", "update"):
        with slots(fits, 2, 3, 4, ((0, 3), (1, 2)), first) as worlds:
            worlds.form()
            said(worlds, (0, 3), 2)
            worlds.tell_change()  # the next commit is that at the end of the epoch
            worlds.start(2)
            worlds.form(0, 1)
            said(worlds, (1, 2), 3)
            worlds.kill(2)
            worlds.form(0, 1)
            said(worlds, (1, 2), 2)
            worlds.go_on(0, 1)
            results = worlds.results()
        every = [(epoch, batch) for epoch in range(3) for batch in range(4)]
        for result in results.values():
            assert result["weight"] == -12.0, (first, result)
            assert result["updates"] == 12, (first, result)
            assert (result["epoch"], result["batch"]) == (3, 0), (first, result)
            assert result["seen"] == sorted([*every, (1, 2)]), (first, result)


def test_legacy_optimizers_are_kept() -> None:
    """Keras 2 has optimizers that make their variables in another way; newcomers get them."""
    with slots(fits, 1, 1, 3, ((0, 1),), "commit", True) as worlds:
        worlds.form()
        said(worlds, (0, 1), 1)
        worlds.start(1)
        worlds.tell_change()
        worlds.form(0)
        results = worlds.results()
    assert [(result["weight"], result["updates"]) for result in results.values()] == [(-3.0, 3)] * 2
    assert results[1]["seen"] == [(0, 2)], results


def passes(updates: int, pauses: tuple[int, ...]) -> dict[str, Any]:
    """Train with three backward passes an update, a commit after each pass, and Horovod's callback for weights."""
    import ringtrain.tensorflow.keras as hvd

    hvd.init()
    keras = tf.keras
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([tf.zeros((1, 1)).numpy()])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=3)
    model.compile(optimizer=optimizer, loss=lambda _, predicted: tf.reduce_mean(predicted))
    ones = tf.ones((4, 1))
    state = hvd.elastic.KerasState(model, step=0)
    weights = hvd.callbacks.BroadcastGlobalVariablesCallback(0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        while float(model.get_weights()[0][0, 0]) > -3.0 * updates:
            pause(state.step, pauses)
            model.fit(ones, ones, batch_size=4, epochs=1, verbose=0, callbacks=[weights])
            state.step += 1
            state.commit()

    train(state)
    return {"weight": float(model.get_weights()[0][0, 0]), "steps": state.step}


def test_passes_of_an_update_begin_anew() -> None:
    """Newcomers have none of the passes that survivors have: all begin the update anew, in place of waiting."""
    with slots(passes, 1, 2, (1,)) as worlds:
        worlds.form()
        said(worlds, 1, 1)
        worlds.start(1)
        worlds.tell_change()
        worlds.form(0)
        results = worlds.results()
    assert list(results.values()) == [{"weight": -6.0, "steps": 2 + 6}] * 2


def on_the_host(steps: int, pauses: tuple[int, ...]) -> dict[str, Any]:
    """Train with a HostOptimizer. All ranks have the same gradient, so the weights do not depend on the world."""
    import ringtrain.tensorflow.keras as hvd

    hvd.init()
    keras = tf.keras
    model = keras.Sequential([keras.layers.Input((40,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([tf.reshape(tf.linspace(-1.0, 1.0, 40), (40, 1)).numpy()])
    optimizer = hvd.HostOptimizer(keras.optimizers.Adam(0.1), elastic=True)
    model.compile(optimizer=optimizer, loss=lambda _, predicted: tf.reduce_mean(tf.square(predicted)))
    ones = tf.ones((4, 40))
    state = hvd.elastic.KerasState(model, step=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.step < steps:
            pause(state.step, pauses)
            model.train_on_batch(ones, tf.ones((4, 1)))
            state.step += 1
            if state.step == 4:
                optimizer.learning_rate.assign(0.05)
            state.commit()

    train(state)
    weights = model.get_weights()[0][:, 0].tolist()
    return {"weights": weights, "updates": (int(optimizer.iterations.numpy()), optimizer.updates)}


def test_a_host_optimizer_goes_on_in_worlds_of_other_sizes() -> None:
    """Moments are redistributed: 2 to 3 ranks, then one is killed; the weights are those of one rank."""
    with slots(on_the_host, 1, 9, ()) as worlds:
        worlds.form()
        expected = worlds.results()[0]
    assert expected["updates"] == (9, 9)
    with slots(on_the_host, 2, 9, (2, 6)) as worlds:
        worlds.form()
        said(worlds, 2, 2)
        worlds.start(2)
        worlds.tell_change()
        worlds.form(0, 1)
        said(worlds, 6, 3)
        worlds.kill(1)
        assert worlds.formed(0, 2) == [6, 6]
        worlds.go_on(0, 2)
        results = worlds.results()
    assert results[0] == results[2]
    assert results[0]["updates"] == expected["updates"]
    # A third of three gradients is not always one of them.
    np.testing.assert_allclose(results[0]["weights"], expected["weights"], rtol=1e-5)


def slots(function: Any, count: int, *args: Any) -> AbstractContextManager[Slots]:
    """`forked_slots` with few threads."""
    return forked_slots(function, count, *args, env=ENV)


def said(worlds: Slots, what: Any, which: Any) -> None:
    """Wait until these slots (a number: all slots below it) have reported `what`."""
    for slot in range(which) if isinstance(which, int) else which:
        message = worlds.message(slot)
        assert message == what, (slot, message, what)
