"""Checks of training with ringtrain.keras, run on every rank of a world."""

import itertools
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras
from test_tensorflow_training import (
    RANK,
    RULES,
    SIZE,
    STEPS,
    agree,
    batch,
    network,
    pooled,
    reference,
    same_everywhere,
)

import ringtrain.keras as hvd
import ringtrain.tensorflow
import ringtrain.tensorflow.keras as hvd_in_tensorflow
import ringtrain.tensorflow.keras.callbacks as callbacks_in_tensorflow
from ringtrain.errors import ConfigurationError, MismatchError
from ringtrain.optim import SGD
from ringtrain_tensorflow.keras.api import IS_KERAS_2

RUN_IN = [
    {"framework": "keras", "ranks": [2]},
    {
        "framework": "keras",
        "ranks": [1],
        # What one rank does otherwise: it reduces nothing.
        "tests": [
            "test_diloco_of_one_batch_trains_like_one_process",
            "test_several_backward_passes_a_step",
            "test_local_layers_stay_local",
            "test_adasum",
            "test_adasum_of_several_backward_passes",
            "test_an_overflow_of_one_rank",
            "test_broadcast_callback_leaves_local_variables",
            "test_learning_rate_warmup",
            "test_values",
        ],
    },
    {
        "name": "keras-2",
        "framework": "tf_keras",
        "env": {"TF_USE_LEGACY_KERAS": "1"},
        "ranks": [2],
        # Those with optimizers, names and files of Keras 2.
        "tests": [
            "test_diloco_of_one_batch_trains_like_one_process",
            "test_fit_trains_like_one_process",
            "test_an_optimizer_made_of_the_config_of_a_distributed_one",
            "test_ranks_that_have_built_different_models_before",
            "test_several_backward_passes_a_step",
            "test_an_average_of_weights_over_several_backward_passes",
            "test_passes_of_other_variables_are_refused",
            "test_local_layers_stay_local",
            "test_adasum",
            "test_adasum_of_several_backward_passes",
            "test_wrong_arguments",
            "test_an_overflow_of_one_rank",
            "test_an_error_within_a_layer",
            "test_broadcast_callback_leaves_local_variables",
            "test_learning_rate_schedule",
            "test_momentum_correction",
            "test_best_model_checkpoint",
            "test_load_model_continues",
        ],
    },
]


def own_data(steps: int) -> tf.data.Dataset:
    """This rank's batches, in order."""
    return data_of(RANK, steps)


def data_of(rank: int, steps: int) -> tf.data.Dataset:
    batches = [batch(rank, step) for step in range(steps)]
    xs, ys = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return tf.data.Dataset.from_tensor_slices((xs, ys)).batch(4)


def fit(model: keras.Model, optimizer, steps: int = STEPS, at_once: int = 1, built_in_fit: bool = False, **options):
    """Train `model`. `built_in_fit`: Keras builds the optimizer, and traces a step twice for that. The legacy
    optimizers of Keras 2 have no `build`."""
    model.compile(optimizer=optimizer, loss="mse", steps_per_execution=at_once)
    if not built_in_fit and hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables)
    return model.fit(own_data(steps), verbose=0, shuffle=False, **options)


def test_diloco_of_one_batch_trains_like_one_process():
    """Synchronized after each batch by the plain mean, it is synchronous SGD; also when ranks begin with different
    weights."""
    model = network(seed=RANK)
    diloco = hvd.callbacks.DiLoCo(outer=SGD(lr=1.0), sync_every=1)
    fit(model, RULES["sgd"](), callbacks=[diloco])
    agree(model, reference("sgd"))
    same_everywhere(model)
    assert (diloco.outer.steps, diloco.outer.synchronizations) == (STEPS, STEPS)


def test_diloco_of_many_batches():
    """Ranks have the same model at the end, averages of normalization too; a batch may have several steps."""
    model = keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    )
    x = np.random.default_rng(RANK).normal(size=(40, 3))
    diloco = hvd.callbacks.DiLoCo(sync_every=8)
    model.compile(keras.optimizers.Adam(1e-2), loss="mse", steps_per_execution=4)
    model.fit(x, x.sum(1), batch_size=4, epochs=3, verbose=0, callbacks=[diloco])
    assert diloco.outer.steps == 30
    same_everywhere(model)


def test_what_diloco_refuses():
    for options, optimizer, words in (
        ({"elastic": True}, keras.optimizers.SGD, "neither elastic=True nor sites"),
        ({"sites": [list(range(SIZE))]}, keras.optimizers.SGD, "neither elastic=True nor sites"),
        ({}, lambda: hvd.DistributedOptimizer(keras.optimizers.SGD()), "compile the model with an optimizer of Keras"),
        ({"sync_every": 3}, keras.optimizers.SGD, "2 steps at once and sync_every is 3"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            fit(network(seed=1), optimizer(), 4, callbacks=[hvd.callbacks.DiLoCo(**options)], at_once=2)


def test_fit_trains_like_one_process():
    """The result is the same even if ranks begin with different weights."""
    for rule in ("sgd", "adam"):
        model = network(seed=RANK)
        fit(
            model,
            hvd.DistributedOptimizer(RULES[rule]()),
            built_in_fit=rule == "adam",
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        )
        agree(model, reference(rule))
        same_everywhere(model)


def test_an_optimizer_made_of_the_config_of_a_distributed_one():
    """The new optimizer is distributed, with the same options; scripts create one like this for a second model."""
    first = hvd.DistributedOptimizer(RULES["sgd"](), op=hvd.Sum)
    model, other = network(), network()
    second = type(first).from_config(first.get_config())
    second.learning_rate = first.learning_rate / SIZE
    fit(model, second, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    agree(model, reference("sgd"))
    fit(other, first, steps=2)
    same_everywhere(other)


def test_ranks_that_have_built_different_models_before():
    """Keras names layers by what a process has built; the variables of ranks are paired all the same."""
    if RANK == 0:
        network()
    model = network(seed=RANK)
    starts = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, hvd.DistributedOptimizer(RULES["momentum"]()), steps=2, callbacks=[starts])
    same_everywhere(model)


def test_batches_in_the_timeline():
    """`fit` shows input and batch of each step."""
    with tempfile.TemporaryDirectory() as folder:
        hvd.start_timeline(f"{folder}/trace.json")
        starts = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        fit(network(), hvd.DistributedOptimizer(RULES["sgd"]()), steps=2, callbacks=[starts])
        hvd.stop_timeline()
        path = Path(folder) / ("trace.json" if RANK == 0 else f"trace-rank{RANK}.json")
        spans = [event["name"] for event in json.loads(path.read_text()) if event.get("cat") in ("batch", "step")]
        assert spans == ["batch", "step 1", "batch", "step 2"]


def test_several_backward_passes_a_step():
    """Two passes of the same rank and their mean are one pass over both batches."""
    model, other = network(), network()
    optimizer = hvd.DistributedOptimizer(RULES["sgd"](), backward_passes_per_step=2, average_aggregated_gradients=True)
    fit(model, optimizer, 10, built_in_fit=True)
    train_on_pairs(other, RULES["sgd"](), pooled)
    agree(model, other.get_weights())
    assert int(optimizer.iterations) == 10  # every pass counts, as in Horovod


def train_on_pairs(model: keras.Model, plain, batch_of) -> None:
    """Five steps, each on two batches at once."""
    for step in range(0, 10, 2):
        x, y = (np.concatenate(parts) for parts in zip(batch_of(step), batch_of(step + 1), strict=True))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        plain.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )


def test_an_average_of_weights_over_several_backward_passes():
    """The average begins with the first update, as without passes; it contains no zeros, and `fit` ends with it."""
    model, other = network(), network()
    plain, wrapped = (keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5) for _ in range(2))
    options = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
    fit(model, hvd.DistributedOptimizer(wrapped, **options), 10, built_in_fit=True)
    train_on_pairs(other, plain, pooled)
    plain.finalize_variable_values(other.trainable_variables)
    agree(model, other.get_weights())


def test_passes_of_other_variables_are_refused():
    """Otherwise their sums would be applied to the variables of the last pass, or a cycle later."""
    first, second = ((tf.Variable if IS_KERAS_2 else keras.Variable)([1.0]) for _ in range(2))
    one = tf.constant([1.0])
    for then in ([(one, first)], [(one, first), (None, second)]):
        optimizer = hvd.DistributedOptimizer(RULES["sgd"](), backward_passes_per_step=2)
        optimizer.apply_gradients([(one, first), (one, second)])
        with pytest.raises(ValueError, match="gradients of other variables than the first pass"):
            optimizer.apply_gradients(then)


def test_local_layers_stay_local():
    model = network()
    optimizer = hvd.PartialDistributedOptimizer(RULES["sgd"](), local_layers=model.layers[-1])
    fit(model, optimizer, 3)
    biases = hvd.allgather(model.layers[-1].bias[None])
    assert len(np.unique(biases[:, 0])) == SIZE
    first = hvd.allgather(model.layers[0].kernel[None])
    np.testing.assert_allclose(first, np.broadcast_to(first[:1], first.shape), rtol=0.5)
    other = network()
    registered = hvd.DistributedOptimizer(RULES["sgd"]())
    registered.register_local_var(other.layers[-1].bias)
    fit(other, registered, 3)
    assert len(np.unique(hvd.allgather(other.layers[-1].bias[None])[:, 0])) == SIZE


def test_adasum():
    if SIZE & (SIZE - 1):
        return
    model = network()
    fit(model, hvd.DistributedOptimizer(RULES["sgd"](), op=hvd.Adasum), 5)
    same_everywhere(model)
    partial = network()
    local = partial.layers[-1]
    optimizer = hvd.PartialDistributedOptimizer(RULES["sgd"](), op=hvd.Adasum, local_layers=local)
    fit(partial, optimizer, 3)
    assert len(np.unique(hvd.allgather(local.bias[None])[:, 0])) == SIZE


def test_adasum_of_several_backward_passes():
    """Each update is of all its passes; that of ranks with the same batches is that of one of them."""
    if SIZE & (SIZE - 1):
        return
    model, other = network(), network()
    options = {"backward_passes_per_step": 2, "average_aggregated_gradients": True, "op": hvd.Adasum}
    model.compile(optimizer=hvd.DistributedOptimizer(RULES["sgd"](), **options), loss="mse")
    model.fit(data_of(0, 10), verbose=0, shuffle=False)
    train_on_pairs(other, RULES["sgd"](), lambda step: batch(0, step))
    agree(model, other.get_weights())


def test_wrong_arguments():
    for call in (
        lambda: hvd.DistributedOptimizer("adam"),
        lambda: hvd.DistributedOptimizer(hvd.DistributedOptimizer(RULES["sgd"]())),
        lambda: hvd.DistributedOptimizer(RULES["sgd"](), backward_passes_per_step=0),
        lambda: hvd.DistributedOptimizer(RULES["sgd"](), op=hvd.Min),
        lambda: hvd.callbacks.LearningRateScheduleCallback(None, 1.0),
    ):
        with pytest.raises(ValueError, match="expected"):
            call()


def test_an_overflow_of_one_rank():
    """All ranks skip the step where the loss scale is inside, and a loss scale around the optimizer is refused."""
    scaled = keras.mixed_precision.LossScaleOptimizer
    rules = [keras.optimizers.SGD, keras.optimizers.legacy.SGD] if IS_KERAS_2 else [keras.optimizers.SGD]
    for rule, eager, op in itertools.product(rules, (False, True), (hvd.Average, hvd.Adasum)):
        if SIZE & (SIZE - 1) and op is hvd.Adasum:
            continue
        if op is hvd.Average:
            optimizer = hvd.DistributedOptimizer(scaled(rule(1e-3), initial_scale=2.0**10))
            model = _half_model(optimizer, eager)
            seen = [_step_of_half_model(model, 1000.0 if RANK == 0 and step == 1 else 0.1) for step in range(3)]
            assert seen[0] == seen[1] != seen[2]
            assert float(optimizer.loss_scale if IS_KERAS_2 else optimizer.dynamic_scale) == 2.0**9
        inner = hvd.DistributedOptimizer(rule(1e-3), op=op)
        refused = _half_model(scaled(inner, initial_scale=2.0**10) if IS_KERAS_2 else inner, eager)
        if SIZE == 1:
            _step_of_half_model(refused, 0.1)
            continue
        with pytest.raises(Exception, match="LossScaleOptimizer is around the DistributedOptimizer"):
            _step_of_half_model(refused, 0.1)


def _half_model(optimizer, eager: bool) -> keras.Model:
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", dtype="mixed_float16")
    model = keras.Sequential([keras.Input((2,)), dense])
    if not IS_KERAS_2:
        model.dtype_policy = "mixed_float16"
    model.compile(optimizer=optimizer, loss="mse", run_eagerly=eager)
    return model


def _step_of_half_model(model: keras.Model, x: float) -> list[float]:
    model.train_on_batch(np.full((1, 2), x, np.float32), np.zeros((1, 1), np.float32))
    return np.ravel(model.get_weights()[0]).tolist()


def test_an_error_within_a_layer():
    """Keras adds what the layer was called with, and the error stays Ringtrain's and TensorFlow's."""

    class Reducing(keras.layers.Layer):
        def call(self, x):
            return ringtrain.tensorflow.allreduce(x, name="within_a_layer")

    if SIZE == 1:
        return
    with pytest.raises(MismatchError, match=r"shape is .* on rank") as caught:
        Reducing()(tf.ones(2 + RANK))
    assert isinstance(caught.value, tf.errors.FailedPreconditionError)


def test_broadcast_callback_leaves_local_variables():
    model = network(seed=RANK)
    local = model.layers[-1].bias
    local.assign(tf.fill([2], float(RANK)))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(SIZE - 1, local_variables=[local])
    fit(model, keras.optimizers.SGD(0.0), 1, callbacks=[callback])
    np.testing.assert_array_equal(local, [float(RANK)] * 2)
    np.testing.assert_array_equal(model.layers[0].kernel, network(seed=SIZE - 1).layers[0].kernel)


class Recorder(keras.callbacks.Callback):
    """Keeps the learning rate of every batch, and the logs of every epoch."""

    def __init__(self):
        super().__init__()
        self.rates, self.logs = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))

    def on_epoch_end(self, epoch, logs=None):
        self.logs.append(dict(logs))


def test_metric_average():
    before, after = Recorder(), Recorder()
    fit(network(), RULES["sgd"](), 2, callbacks=[before, hvd.callbacks.MetricAverageCallback(), after])
    own = before.logs[0]["loss"]
    everyone = hvd.allgather([own])
    assert abs(after.logs[0]["loss"] - np.mean(everyone)) < 1e-6


def test_learning_rate_schedule():
    recorder = Recorder()
    schedule = hvd.callbacks.LearningRateScheduleCallback
    callbacks = [
        schedule(0.1, lambda epoch: 0.5**epoch, start_epoch=1, end_epoch=3),
        schedule(0.1, 0.01, start_epoch=3),
        recorder,
    ]
    history = fit(network(), keras.optimizers.SGD(0.1), 2, epochs=4, callbacks=callbacks)
    np.testing.assert_allclose(recorder.rates, [0.1, 0.1, 0.05, 0.05, 0.025, 0.025, 0.001, 0.001], rtol=1e-5)
    np.testing.assert_allclose(history.history["lr"], [0.1, 0.05, 0.025, 0.001], rtol=1e-5)
    smooth = Recorder()
    fit(
        network(),
        keras.optimizers.SGD(0.1),
        4,
        callbacks=[schedule(1.0, lambda epoch: 1.0 + epoch, staircase=False), smooth],
    )
    np.testing.assert_allclose(smooth.rates, [1.0, 1.25, 1.5, 1.75], rtol=1e-5)


def test_learning_rate_warmup():
    recorder = Recorder()
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2, verbose=1)
    fit(network(), keras.optimizers.SGD(0.1), 2, epochs=3, callbacks=[warmup, recorder])
    expected = [0.1 / SIZE * (done * (SIZE - 1) / 4 + 1) for done in (1, 2, 3, 4)] + [0.1, 0.1]
    np.testing.assert_allclose(recorder.rates, expected, rtol=1e-5)


def test_momentum_correction():
    """A velocity that was gathered at one rate is scaled to the next."""
    model = network()
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    fit(model, optimizer, 2)
    before = [np.array(velocity) for velocity in optimizer.momentums]
    callback = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5)
    callback.set_model(model)
    callback.on_epoch_begin(0)
    callback.on_train_batch_begin(0)
    for ours, theirs in zip(optimizer.momentums, before, strict=True):
        np.testing.assert_allclose(ours, 0.5 * theirs, rtol=1e-6)


def test_best_model_checkpoint():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "best.keras"
        best = hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=str(path))
        fit(network(), RULES["sgd"](), 2, callbacks=[best])
        assert path.exists() is (RANK == 0)


def test_load_model_continues():
    """The model that is loaded goes on for five steps like the one that was saved."""
    model = network()
    fit(model, hvd.DistributedOptimizer(RULES["adam"]()), 5)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.keras"
        model.save(path)
        assert type(keras.models.load_model(path).optimizer) is keras.optimizers.Adam
        loaded = hvd.load_model(path)
    with pytest.raises(OSError if IS_KERAS_2 else ValueError, match="No file" if IS_KERAS_2 else "legacy_opts"):
        hvd.load_model("nowhere", legacy_opts=True)
    assert int(loaded.optimizer.iterations) == 5
    for one in (loaded, model):
        one.fit(own_data(5), verbose=0, shuffle=False)
    agree(loaded, model.get_weights())
    same_everywhere(loaded)


def test_values():
    assert hvd.allreduce(float(RANK), op=hvd.Sum) == sum(range(SIZE))
    assert hvd.broadcast([RANK], SIZE - 1).numpy().tolist() == [SIZE - 1]
    assert hvd.reducescatter(np.ones(SIZE), op=hvd.Sum).numpy().tolist() == [float(SIZE)]
    with tf.Graph().as_default(), tf.compat.v1.Session():
        assert hvd.allgather([RANK]).tolist() == list(range(SIZE))
    by_place = hvd.DistributedOptimizer(RULES["sgd"](), None, "", "", hvd.Compression.none, False, 1.0, hvd.Sum, 0, 3)
    assert by_place._reducer.options.groups == 3
    by_place = hvd_in_tensorflow.DistributedOptimizer(
        RULES["sgd"](), None, "", "", hvd.Compression.none, False, 1.0, hvd.Sum, 3
    )
    assert by_place._passes == 3
    assert callbacks_in_tensorflow.MetricAverageCallback is hvd.callbacks.MetricAverageCallback
