"""`ringtrain.keras.HostOptimizer` on every rank, and one process with Keras' own on the joined batches."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras
from test_keras_oracle import (
    RANK,
    ROWS,
    SIZE,
    Model,
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
    reference,
    schedule,
    with_built_optimizer,
    with_unused_layer,
    words,
)

import ringtrain.keras as hvd
import ringtrain.tensorflow
from ringtrain.checkpoint import ShardedCheckpoints
from ringtrain.errors import ConfigurationError
from ringtrain_tensorflow.distribute import HorovodStrategy
from ringtrain_tensorflow.keras.api import IS_KERAS_2

RUN_IN = [
    {"name": "keras-3", "framework": "keras", "env": {"RINGTRAIN_TRANSPORT": "grpc"}, "ranks": [3]},
    {
        "name": "keras-3",
        "framework": "keras",
        "env": {"RINGTRAIN_TRANSPORT": "grpc"},
        "ranks": [1],
        "tests": [
            "test_sgd",
            "test_adam_whose_epsilon_matters",
            "test_eager_training",
            "test_embedding",
            "test_layer_without_gradient",
            "test_each_rank_holds_its_part_of_the_state",
            "test_parts_of_the_state_go_on",
            "test_strategy",
            "test_lamb",
            "test_loss_scale",
            "test_a_loss_scale_around_it_is_refused",
            "test_files_of_keras_and_tensorflow_carry_the_state",
            "test_state_that_is_not_gathered",
        ],
    },
    # Through shared memory.
    {"name": "keras-2", "framework": "tf_keras", "env": {"TF_USE_LEGACY_KERAS": "1"}, "ranks": [2]},
]

STEPS = 6
ALONE = [hvd.add_process_set([rank]) for rank in range(SIZE)][RANK]


def like_keras(optimizer: Callable[[], Any], *arguments: Any, **options: Any) -> Any:
    of_host = {"wrap": hvd.HostOptimizer, "built_in_fit": True}  # which costs it nothing: TensorFlow creates no state
    return like_one_process(*arguments, optimizer=optimizer, **of_host, **options)


def adam() -> Any:
    return keras.optimizers.Adam(1e-2)


def test_sgd():
    like_keras(lambda: keras.optimizers.SGD(0.1))
    like_keras(lambda: keras.optimizers.SGD(0.1, weight_decay=0.1))


def test_momentum_with_a_rate_that_changes():
    """Keras' velocity has the rate of each update in it."""
    like_keras(schedule("cosine"))
    like_keras(lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True))


def test_rate_that_a_callback_sets():
    rates = lambda: [keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))]  # noqa: E731
    like_keras(lambda: keras.optimizers.SGD(0.1, momentum=0.9), epochs=3, callbacks=rates)


def test_adam_whose_epsilon_matters():
    like_keras(adam)
    like_keras(lambda: keras.optimizers.Adam(1e-2, epsilon=1e-2))


def test_adamw_with_variables_that_do_not_decay():
    def optimizer() -> Any:
        made = keras.optimizers.AdamW(1e-2, weight_decay=0.3)
        made.exclude_from_weight_decay(var_names=["bias"])
        return made

    like_keras(optimizer)


def test_global_clipnorm():
    like_keras(lambda: keras.optimizers.Adam(1e-2, global_clipnorm=0.05))


def test_eager_training():
    like_keras(adam, run_eagerly=True)


def test_steps_per_execution():
    like_keras(adam, steps_per_execution=3)


def test_embedding():
    """Summing repeated rows equals Keras' result if the update is linear in the gradient; otherwise the error requests
    the option."""
    like_keras(lambda: keras.optimizers.SGD(0.1, momentum=0.9), embedding, data=words)
    optimizers = [lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.05)]
    if IS_KERAS_2:  # it sums such rows itself
        like_keras(adam, embedding, data=words)
    else:
        optimizers.append(adam)
    for optimizer in optimizers:
        model = built(embedding)
        model.compile(hvd.HostOptimizer(optimizer()), loss="mse")
        with pytest.raises(Exception, match=r"sparse.*sparse_as_dense=True.*DistributedOptimizer"):  # Keras adds to it
            fitted(model, words(RANK))
        dense_rows = [built(embedding), built(embedding)]
        for one, wrap in zip(dense_rows, (hvd.HostOptimizer, hvd.DistributedOptimizer), strict=True):
            one.compile(wrap(optimizer(), sparse_as_dense=True), loss="mse")
            fitted(with_built_optimizer(one), words(RANK))
        agree(*dense_rows, 1e-4)


def test_constraint():
    """The next update starts from the weights after Keras' constraint."""
    like_keras(lambda: keras.optimizers.SGD(0.1), lambda: dense(kernel_constraint=keras.constraints.MaxNorm(0.5)))


def test_layer_without_gradient():
    like_keras(lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1), with_unused_layer)


def test_bfloat16_policy():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        like_keras(adam, tolerance=3e-2)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def test_each_rank_holds_its_part_of_the_state():
    """Two float32 numbers for each weight, 1/size of them here; Keras has none."""
    model = like_keras(adam)
    optimizer, weights = model.optimizer, sum(weight.size for weight in model.get_weights())
    whole = np.asarray(hvd.allreduce(float(optimizer.state_bytes))) * SIZE
    assert whole == 2 * 4 * weights
    assert optimizer.state_bytes <= 2 * 4 * (weights / SIZE + len(model.weights) * 16)
    assert all(np.size(value) == 1 for value in optimizer.variables)


def test_values_that_a_script_sets_count():
    alone, ours = with_built_optimizer(compiled(adam())), compiled(hvd.HostOptimizer(adam()))
    for model, parts in ((alone, everyone()), (ours, numbers(RANK))):
        fitted(model, parts)
        model.set_weights([0.5 * weight for weight in model.get_weights()])
        fitted(model, parts)
    agree(ours, alone, 1e-4)


def test_state_goes_on_at_another_number_of_ranks():
    """One rank loads the state that all ranks saved, and continues like an uninterrupted process."""
    first = fitted(compiled(hvd.HostOptimizer(schedule("steps")())))
    state = first.optimizer.state_dict()
    second = compiled(hvd.HostOptimizer(schedule("steps")(), process_set=ALONE))
    second.optimizer.build(second.trainable_variables)
    second.optimizer.load_state_dict(state)
    agree(fitted(second, everyone()), reference(schedule("steps")), 1e-4)


def test_parts_of_the_state_go_on():
    """Each rank's part, by a checkpoint that all ranks write; rate and count with it."""
    first = fitted(compiled(hvd.HostOptimizer(adam())))
    assert bool(first.optimizer.state_dict(root=0)) == (RANK == 0)
    folder = ringtrain.tensorflow.broadcast_object(tempfile.mkdtemp(), 0)
    second = compiled(hvd.HostOptimizer(keras.optimizers.Adam(0.5)))
    second.optimizer.build(second.trainable_variables)
    with ShardedCheckpoints(f"file://{folder}") as checkpoints:
        checkpoints.save(1, {"optimizer": first.optimizer.shard_dict()})
        checkpoints.latest(lambda state: second.optimizer.load_state_dict(state["optimizer"]))
    assert float(np.asarray(second.optimizer.learning_rate)) == pytest.approx(1e-2)
    agree(fitted(second), reference(adam), 1e-4)


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


def test_strategy():
    optimizer = hvd.HostOptimizer(adam())
    ours = by_strategy(optimizer, numbers(RANK), ROWS, HorovodStrategy())
    agree(ours, by_strategy(adam(), everyone(), SIZE * ROWS, None), 1e-4)
    assert int(np.asarray(optimizer.iterations)) == optimizer.updates == STEPS


def test_gradient_that_one_rank_alone_has():
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


def test_lamb():
    """Each variable has one ratio, whichever ranks have its parts; Keras 2 has no Lamb."""
    if IS_KERAS_2:
        assert not hasattr(keras.optimizers, "Lamb")
        return
    like_keras(lambda: keras.optimizers.Lamb(1e-2))
    like_keras(lambda: keras.optimizers.Lamb(1e-2, epsilon=1e-2, global_clipnorm=0.05), epochs=4)


def scaled_adam() -> Any:
    kind = keras.mixed_precision.LossScaleOptimizer
    return kind(keras.optimizers.Adam(1e-2), initial_scale=2.0**100, dynamic_growth_steps=2)


def with_an_overflow(rank: int) -> tuple[Any, Any]:
    """Return data that make the loss overflow in the third step of the last rank."""
    x, y = numbers(rank)
    if rank == SIZE - 1:
        y[2 * ROWS : 3 * ROWS] *= 1e12
    return x, y


def scale_of(optimizer: Any) -> float:
    return float(np.asarray(optimizer.loss_scale if IS_KERAS_2 else optimizer.dynamic_scale))


def test_loss_scale():
    """A step that overflows on one rank is skipped by all, and the scale is Keras' own."""
    plain = with_built_optimizer(compiled(scaled_adam()))
    parts = [with_an_overflow(rank) for rank in range(SIZE)]
    fitted(plain, (joined([x for x, _ in parts]), joined([y for _, y in parts])), 2)
    for eager in (False, True):
        ours = like_keras(scaled_adam, data=with_an_overflow, run_eagerly=eager)
        assert ours.optimizer.updates == 2 * (STEPS - 1)
        # of each epoch's six steps: doubled after two, halved, doubled after two, and one is left for the next
        assert scale_of(ours.optimizer) == scale_of(plain.optimizer)


def test_mixed_float16():
    """A whole model of that policy."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        like_keras(lambda: keras.mixed_precision.LossScaleOptimizer(adam()), tolerance=3e-2)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def test_loss_scale_goes_on():
    """State and scale are saved and loaded together."""
    first = fitted(compiled(hvd.HostOptimizer(scaled_adam())))
    state = first.optimizer.state_dict()
    second = compiled(hvd.HostOptimizer(scaled_adam()))
    second.optimizer.build(second.trainable_variables)
    second.optimizer.load_state_dict(state)
    agree(fitted(second), reference(scaled_adam), 1e-4)
    assert scale_of(second.optimizer) == scale_of(reference(scaled_adam).optimizer) > 2.0**100
    with pytest.raises(ConfigurationError, match="elastic=True does not support a LossScaleOptimizer"):
        hvd.HostOptimizer(scaled_adam(), elastic=True)


def test_a_loss_scale_around_it_is_refused():
    """The error describes a solution."""
    model = built(dense)
    around = keras.mixed_precision.LossScaleOptimizer(hvd.HostOptimizer(adam()))
    model.compile(around, loss="mse")
    with pytest.raises(Exception, match=r"inside: HostOptimizer\(keras.mixed_precision.LossScaleOptimizer"):
        fitted(model)


def test_momentum_correction():
    """Keras' velocities are scaled, as with DistributedOptimizer."""
    for nesterov in (False, True):
        models = []
        for wrap in (hvd.HostOptimizer, hvd.DistributedOptimizer):
            momentum = keras.optimizers.SGD(0.04, momentum=0.9, nesterov=nesterov)
            models.append(with_built_optimizer(compiled(wrap(momentum))))
            rates = [
                hvd.callbacks.LearningRateWarmupCallback(0.04, warmup_epochs=2),
                hvd.callbacks.LearningRateScheduleCallback(0.04, lambda epoch: 0.1, start_epoch=2),
            ]
            x, y = numbers(RANK)
            models[-1].fit(x, y, batch_size=ROWS, epochs=3, shuffle=False, verbose=0, callbacks=rates)
        agree(*models, 1e-5)


def test_settings_after_the_build():
    """Changes of settings that Keras reads in each update, but this optimizer does not, are refused."""

    def exclude(optimizer: Any, variables: Any) -> None:
        optimizer.exclude_from_weight_decay(var_list=variables)

    changes = {name: lambda o, _, n=name: setattr(o, n, 1e-9) for name in ("clipnorm", "clipvalue", "global_clipnorm")}
    changes |= {name: lambda o, _, n=name: setattr(o, n, True) for name in ("use_ema", "amsgrad")}
    changes["exclude_from_weight_decay"] = exclude
    for word, change in changes.items():
        optimizer, variable = hvd.HostOptimizer(keras.optimizers.AdamW(1e-2)), tf.Variable([1.0])
        optimizer.build([variable])
        try:
            change(optimizer, [variable])
        except ValueError:  # Keras 2 refuses it
            continue
        with pytest.raises(ConfigurationError, match=word):
            optimizer.apply_gradients([(tf.constant([1.0]), variable)])


def test_optimizers_without_a_rule_are_refused():
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


def shared_folder() -> Path:
    return Path(ringtrain.tensorflow.broadcast_object(tempfile.mkdtemp() if RANK == 0 else None, 0))


def saved_by_tensorflow(model: Model, folder: Path) -> Callable[[Model], Any]:
    if RANK == 0:
        tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(folder / "c"))

    def restore(other: Model) -> None:
        made = tf.train.Checkpoint(model=other, optimizer=other.optimizer)
        made.restore(tf.train.latest_checkpoint(str(folder))).assert_existing_objects_matched()

    return restore


def saved_as_weights(model: Model, folder: Path) -> Callable[[Model], Any]:
    file = str(
        folder / ("c" if IS_KERAS_2 else "c.weights.h5")
    )  # Keras 2 saves optimizers in TensorFlow's format alone
    if RANK == 0:
        model.save_weights(file)
    return lambda other: other.load_weights(file)


def saved_as_model(model: Model, folder: Path) -> Callable[[Model], Any]:
    if RANK == 0:
        model.save(folder / "model.keras")
    return lambda other: other.load_weights(folder / "model.keras")


WAYS = [saved_by_tensorflow, saved_as_weights, saved_as_model]


def begun(optimizer: Callable[[], Any], process_set: Any = hvd.global_process_set) -> Model:
    """A model whose optimizer is built."""
    model = compiled(hvd.HostOptimizer(optimizer(), process_set=process_set))
    model.optimizer.build(model.trainable_variables)
    return model


def test_files_of_keras_and_tensorflow_carry_the_state():
    """A state that rank 0 saves after `gather_state` continues as one uninterrupted process."""
    for optimizer in (adam, schedule("steps")):
        first = fitted(begun(optimizer))
        first.optimizer.gather_state()
        for save in WAYS:
            restore = save(first, shared_folder())
            ringtrain.tensorflow.barrier()
            second = begun(optimizer)
            restore(second)
            assert second.optimizer.updates == STEPS
            agree(fitted(second), reference(optimizer), 1e-4)


def test_restore_before_the_build():
    """The state waits for the variables, as those of Keras' own optimizers do."""
    first = fitted(begun(adam))
    first.optimizer.gather_state()
    restore = saved_by_tensorflow(first, shared_folder())
    ringtrain.tensorflow.barrier()
    second = compiled(hvd.HostOptimizer(adam()))
    restore(second)
    agree(fitted(second), reference(adam), 1e-4)


def test_state_that_is_not_gathered():
    """TensorFlow's checkpoint is refused, saving a Keras file warns, and loading it, too; a single rank has the whole
    state."""
    model, folder = fitted(begun(adam)), shared_folder()
    if SIZE == 1:
        saved_by_tensorflow(model, folder)
        return
    if RANK == 0:
        with pytest.raises(ConfigurationError, match=r"gather_state\(\) on every rank"):
            saved_by_tensorflow(model, folder)
        with pytest.warns(UserWarning, match=r"gather_state\(\) on every rank"):
            restore = saved_as_model(model, folder)
        with pytest.raises(
            Exception, match=r"after 6 updates and no optimizer state.*gather_state"
        ):  # Keras adds to it
            restore(begun(adam, ALONE))
    ringtrain.tensorflow.barrier()


def test_count_without_moments():
    """A restore that brings the count alone, as of a file of Keras' own optimizer, ends in the first update."""
    plain = fitted(with_built_optimizer(compiled(adam())))
    folder = Path(tempfile.mkdtemp())
    tf.train.Checkpoint(optimizer=plain.optimizer).save(str(folder / "c"))
    model = begun(adam, ALONE)
    tf.train.Checkpoint(optimizer=model.optimizer).restore(tf.train.latest_checkpoint(str(folder)))
    with pytest.raises(Exception, match=r"iterations is 6, but its moments are from update 0"):
        fitted(model)


class Interrupted(keras.callbacks.Callback):
    """Ends training as a lost node would."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 2:
            raise InterruptedError


def test_backup_and_restore():
    """Keras' callback requires a separate folder on every rank; every rank saves the gathered state."""
    folder, gather = tempfile.mkdtemp(), hvd.callbacks.GatherState(root=None)
    x, y = numbers(RANK)

    def train(*more: Any) -> Model:
        model = begun(adam)
        backup = keras.callbacks.BackupAndRestore(folder)
        model.fit(x, y, batch_size=ROWS, epochs=4, shuffle=False, verbose=0, callbacks=[gather, backup, *more])
        return model

    with pytest.raises(InterruptedError):
        train(Interrupted())
    agree(train(), reference(adam, 4), 1e-4)


def test_load_model_refuses_the_state_of_a_host_optimizer():
    """The error occurs because loading creates a DistributedOptimizer; a file without updates loads."""
    folder, model = shared_folder(), fitted(begun(adam))
    model.optimizer.gather_state()
    saved_as_model(model, folder)
    ringtrain.tensorflow.barrier()
    with pytest.raises(ConfigurationError, match=r"model.keras.*compile=False.*load_weights"):
        hvd.load_model(folder / "model.keras")
    compiled(adam()).save(Path(new := tempfile.mkdtemp()) / "new.keras")
    assert int(np.asarray(hvd.load_model(Path(new) / "new.keras").optimizer.iterations)) == 0
