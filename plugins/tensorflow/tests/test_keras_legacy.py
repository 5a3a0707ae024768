"""Checks of ringtrain.keras with the legacy optimizers of Keras 2, run on every rank of a world."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow import keras
from test_keras_training import fit
from test_tensorflow_training import SIZE, agree, network, pooled, same_everywhere

import ringtrain.keras as hvd

RUN_IN = {"name": "keras-2", "framework": "tf_keras", "env": {"TF_USE_LEGACY_KERAS": "1"}, "ranks": [2]}

RULES = {
    "sgd": lambda: keras.optimizers.legacy.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.legacy.Adam(1e-2),
}


def test_this_is_keras_2():
    assert keras.optimizers.Adam is tf_keras.optimizers.Adam
    assert isinstance(hvd.callbacks.MetricAverageCallback(), tf_keras.callbacks.Callback)


def trained(rule: str, steps: int) -> list[np.ndarray]:
    """Weights of a network after `steps` steps of one process on everyone's batches."""
    model = network()
    optimizer = RULES[rule]()
    for step in range(steps):
        x, y = pooled(step)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
    return model.get_weights()


def test_legacy_optimizers_train_like_one_process():
    for rule in RULES:
        model = network(seed=SIZE)
        model.set_weights(network().get_weights())
        fit(
            model,
            hvd.DistributedOptimizer(RULES[rule]()),
            10,
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        )
        agree(model, trained(rule, 10))
        same_everywhere(model)


def test_legacy_optimizer_accumulates():
    model = network()
    optimizer = hvd.DistributedOptimizer(RULES["sgd"](), backward_passes_per_step=2)
    before = model.get_weights()
    fit(model, optimizer, 1)
    for weight, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)
    fit(model, optimizer, 1)
    assert int(optimizer.iterations) == 2
    assert any((w != old).any() for w, old in zip(model.get_weights(), before, strict=True))
    same_everywhere(model)


def test_momentum_correction_of_a_legacy_optimizer():
    model = network()
    optimizer = RULES["sgd"]()
    fit(model, optimizer, 2)
    slots = [optimizer.get_slot(variable, "momentum") for variable in model.trainable_variables]
    before = [slot.numpy() for slot in slots]
    callback = hvd.callbacks.LearningRateScheduleCallback(0.05, 0.5)
    callback.set_model(model)
    callback.on_epoch_begin(0)
    callback.on_train_batch_begin(0)
    for slot, old in zip(slots, before, strict=True):
        np.testing.assert_allclose(slot, 0.5 * old, rtol=1e-6)


def test_wrong_optimizer():
    with pytest.raises(ValueError, match="expected a Keras optimizer"):
        hvd.DistributedOptimizer(object())
