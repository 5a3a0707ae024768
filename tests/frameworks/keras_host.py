"""`ringtrain.keras.HostOptimizer` on every rank, and one process with Keras' own on the joined batches."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from frameworks.keras_oracle import (
    RANK,
    ROWS,
    SIZE,
    agree,
    built,
    compiled,
    dense,
    embedding,
    everyone,
    fitted,
    joined,
    like_one_process,
    numbers,
    schedule,
    with_unused_layer,
    words,
)
from tensorflow import keras

import ringtrain.keras as hvd
import ringtrain.tensorflow
from ringtrain.checkpoint import ShardedCheckpoints
from ringtrain.errors import ConfigurationError
from ringtrain.tensorflow.distribute import HorovodStrategy
from ringtrain.tensorflow.keras.api import IS_KERAS_2

STEPS = 6


def like_keras(optimizer: Callable[[], Any], *arguments: Any, **options: Any) -> Any:
    return like_one_process(*arguments, optimizer=optimizer, **{"wrap": hvd.HostOptimizer, **options})


def adam() -> Any:
    return keras.optimizers.Adam(1e-2)


def check_sgd():
    like_keras(lambda: keras.optimizers.SGD(0.1))
    like_keras(lambda: keras.optimizers.SGD(0.1, weight_decay=0.1))


def check_momentum_with_a_rate_that_changes():
    """Keras' velocity has the rate of each update in it."""
    like_keras(schedule("cosine"))
    like_keras(lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True))


def check_rate_that_a_callback_sets():
    rates = lambda: [keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))]  # noqa: E731
    like_keras(lambda: keras.optimizers.SGD(0.1, momentum=0.9), epochs=3, callbacks=rates)


def check_adam_whose_epsilon_matters():
    like_keras(adam)
    like_keras(lambda: keras.optimizers.Adam(1e-2, epsilon=1e-2))


def check_adamw_with_variables_that_do_not_decay():
    def optimizer() -> Any:
        made = keras.optimizers.AdamW(1e-2, weight_decay=0.3)
        made.exclude_from_weight_decay(var_names=["bias"])
        return made

    like_keras(optimizer)


def check_global_clipnorm():
    like_keras(lambda: keras.optimizers.Adam(1e-2, global_clipnorm=0.05))


def check_eager_training():
    like_keras(adam, run_eagerly=True)


def check_steps_per_execution():
    like_keras(adam, steps_per_execution=3)


def check_embedding():
    like_keras(lambda: keras.optimizers.SGD(0.1), embedding, data=words)


def check_constraint():
    """What Keras makes of the new weights is what the next update begins with."""
    like_keras(lambda: keras.optimizers.SGD(0.1), lambda: dense(kernel_constraint=keras.constraints.MaxNorm(0.5)))


def check_layer_without_gradient():
    like_keras(lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1), with_unused_layer)


def check_bfloat16_policy():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        like_keras(adam, tolerance=3e-2)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def check_each_rank_holds_its_part_of_the_state():
    """Two float32 numbers for each weight, 1/size of them here; Keras has none."""
    model = like_keras(adam)
    optimizer, weights = model.optimizer, sum(weight.size for weight in model.get_weights())
    whole = np.asarray(hvd.allreduce(float(optimizer.state_bytes))) * SIZE
    assert whole == 2 * 4 * weights
    assert optimizer.state_bytes <= 2 * 4 * (weights / SIZE + len(model.weights) * 16)
    assert all(np.size(value) == 1 for value in optimizer.variables)


def check_values_that_a_script_sets_count():
    reference, ours = compiled(adam()), compiled(hvd.HostOptimizer(adam()))
    for model, parts in ((reference, everyone()), (ours, numbers(RANK))):
        fitted(model, parts)
        model.set_weights([0.5 * weight for weight in model.get_weights()])
        fitted(model, parts)
    agree(ours, reference, 1e-4)


def check_state_goes_on_at_another_number_of_ranks():
    """What all ranks have saved one rank loads, as one process that was not interrupted."""
    reference = fitted(compiled(schedule("steps")()), everyone(), 2)
    first = fitted(compiled(hvd.HostOptimizer(schedule("steps")())))
    state, alone = first.optimizer.state_dict(), None
    for rank in range(SIZE):
        process_set = hvd.add_process_set([rank])
        alone = process_set if rank == RANK else alone
    second = compiled(hvd.HostOptimizer(schedule("steps")(), process_set=alone))
    second.optimizer.build(second.trainable_variables)
    second.optimizer.load_state_dict(state)
    agree(fitted(second, everyone()), reference, 1e-4)


def check_parts_of_the_state_go_on():
    """Each rank's part, by a checkpoint that all ranks write; rate and count with it."""
    reference = fitted(compiled(adam()), everyone(), 2)
    first = fitted(compiled(hvd.HostOptimizer(adam())))
    assert bool(first.optimizer.state_dict(root=0)) == (RANK == 0)
    folder = ringtrain.tensorflow.broadcast_object(tempfile.mkdtemp(), 0)
    second = compiled(hvd.HostOptimizer(keras.optimizers.Adam(0.5)))
    second.optimizer.build(second.trainable_variables)
    with ShardedCheckpoints(f"file://{folder}") as checkpoints:
        checkpoints.save(1, {"optimizer": first.optimizer.shard_dict()})
        checkpoints.latest(lambda state: second.optimizer.load_state_dict(state["optimizer"]))
    assert float(np.asarray(second.optimizer.learning_rate)) == pytest.approx(1e-2)
    agree(fitted(second), reference, 1e-4)


def by_strategy(optimizer: Any, parts: tuple[Any, Any], rows: int, strategy: Any) -> Any:
    """A loop of one's own in a `tf.function`."""
    model = built(dense)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        pairs = list(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        (strategy.apply_gradients(optimizer, pairs) if strategy else optimizer.apply_gradients(pairs))

    for number in range(STEPS):
        step(*(part[number * rows : (number + 1) * rows] for part in parts))
    return model


def check_strategy():
    optimizer = hvd.HostOptimizer(adam())
    ours = by_strategy(optimizer, numbers(RANK), ROWS, HorovodStrategy())
    agree(ours, by_strategy(adam(), everyone(), SIZE * ROWS, None), 1e-4)
    assert int(np.asarray(optimizer.iterations)) == optimizer.updates == STEPS


def check_gradient_that_one_rank_alone_has():
    """Zeros count for the others; a variable without any gradient stays, and so do its moments."""
    variables = [tf.Variable([1.0, 2.0]), tf.Variable([3.0])]
    plain, ours = adam(), hvd.HostOptimizer(adam())
    expected = [tf.Variable(variable) for variable in variables]
    for step in range(4):
        grad = tf.constant([SIZE * 1.0, 2.0 * SIZE])
        mine = grad if RANK == 0 else None
        last = tf.constant([1.0]) if step % 2 else None
        ours.apply_gradients([(mine, variables[0]), (last, variables[1])])
        pairs = [(grad / SIZE, expected[0]), (last, expected[1])]
        plain.build(expected)
        plain.apply_gradients([pair for pair in pairs if pair[0] is not None])
    for one, other in zip(variables, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5)


def check_lamb():
    """Each variable has a ratio of its own, whichever ranks hold its parts; Keras 2 has no Lamb."""
    if IS_KERAS_2:
        assert not hasattr(keras.optimizers, "Lamb")
        return
    like_keras(lambda: keras.optimizers.Lamb(1e-2))
    like_keras(lambda: keras.optimizers.Lamb(1e-2, epsilon=1e-2, global_clipnorm=0.05), epochs=4)


def scaled_adam() -> Any:
    kind = keras.mixed_precision.LossScaleOptimizer
    return kind(keras.optimizers.Adam(1e-2), initial_scale=2.0**100, dynamic_growth_steps=2)


def with_an_overflow(rank: int) -> tuple[Any, Any]:
    """In the third step of the last rank."""
    x, y = numbers(rank)
    if rank == SIZE - 1:
        y[2 * ROWS : 3 * ROWS] *= 1e12
    return x, y


def scale_of(optimizer: Any) -> float:
    return float(np.asarray(optimizer.loss_scale if IS_KERAS_2 else optimizer.dynamic_scale))


def check_loss_scale():
    """A step that overflows on one rank is skipped by all, and the scale is Keras' own."""
    for eager in (False, True):
        ours = like_keras(scaled_adam, data=with_an_overflow, run_eagerly=eager)
        assert ours.optimizer.updates == 2 * (STEPS - 1)
        # of each epoch's six steps: doubled after two, halved, doubled after two, and one is left for the next
        plain = compiled(scaled_adam())
        parts = [with_an_overflow(rank) for rank in range(SIZE)]
        fitted(plain, (joined([x for x, _ in parts]), joined([y for _, y in parts])), 2)
        assert scale_of(ours.optimizer) == scale_of(plain.optimizer)


def check_mixed_float16():
    """A whole model of that policy."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        like_keras(lambda: keras.mixed_precision.LossScaleOptimizer(adam()), tolerance=3e-2)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def check_loss_scale_goes_on():
    """State and scale are saved and loaded together."""
    reference = fitted(compiled(scaled_adam()), everyone(), 2)
    first = fitted(compiled(hvd.HostOptimizer(scaled_adam())))
    state = first.optimizer.state_dict()
    second = compiled(hvd.HostOptimizer(scaled_adam()))
    second.optimizer.build(second.trainable_variables)
    second.optimizer.load_state_dict(state)
    agree(fitted(second), reference, 1e-4)
    assert scale_of(second.optimizer) == scale_of(reference.optimizer) > 2.0**100
    with pytest.raises(ConfigurationError, match="elastic=True with a LossScaleOptimizer"):
        hvd.HostOptimizer(scaled_adam(), elastic=True)


def check_a_loss_scale_around_it_is_refused():
    """With the way out."""
    model = built(dense)
    around = keras.mixed_precision.LossScaleOptimizer(hvd.HostOptimizer(adam()))
    model.compile(around, loss="mse")
    with pytest.raises(Exception, match=r"Put it inside: HostOptimizer\(keras.mixed_precision.LossScaleOptimizer"):
        fitted(model)


def check_optimizers_without_a_rule_are_refused():
    made = {
        "RMSprop": keras.optimizers.RMSprop,
        "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=1.0),
        "amsgrad": lambda: keras.optimizers.Adam(amsgrad=True),
        "use_ema": lambda: keras.optimizers.Adam(use_ema=True),
        "weight_decay": lambda: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1),
    }
    if not IS_KERAS_2:
        made["Lamb has weight_decay"] = lambda: keras.optimizers.Lamb(weight_decay=0.1)
    for word, make in made.items():
        with pytest.raises(ConfigurationError, match=rf"{word}.*DistributedOptimizer"):
            hvd.HostOptimizer(make())


def check_model_that_is_saved_says_what_is_missing():
    """When it is saved, and when it is loaded; with the state that was kept beside it, training goes on."""
    reference = fitted(compiled(adam()), everyone(), 2)
    model = fitted(compiled(hvd.HostOptimizer(adam())))
    file, state = Path(tempfile.mkdtemp()) / "model.keras", model.optimizer.state_dict()
    with pytest.warns(UserWarning, match="state_dict"):
        model.save(file)
    with pytest.raises(ConfigurationError, match=r"model.keras.*compile=False.*state_dict"):
        hvd.load_model(file)
    second = compiled(adam())
    second.save(file.with_name("new.keras"))
    assert int(np.asarray(hvd.load_model(file.with_name("new.keras")).optimizer.iterations)) == 0  # nothing is lost
    second = keras.models.load_model(file, compile=False)
    second.compile(hvd.HostOptimizer(adam()), loss="mse")
    second.optimizer.build(second.trainable_variables)
    second.optimizer.load_state_dict(state)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    second.fit(*numbers(RANK), batch_size=ROWS, shuffle=False, verbose=0, callbacks=callbacks)
    agree(second, reference, 1e-4)
