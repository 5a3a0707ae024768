"""`ringtrain.keras.HostOptimizer` on every rank, and one process with Keras' own on the joined batches."""

import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
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
    Unused,
    adam,
    agree,
    batches,
    built,
    compiled,
    dense,
    embedding,
    everyone,
    fitted,
    gradients_of,
    like_one_process,
    made_variables,
    mean_of_ranks,
    numbers,
    reference,
    rows_of,
    same_values,
    schedule,
    sequential,
    updated,
    with_built_optimizer,
    words,
)

import ringtrain.keras as hvd
import ringtrain.tensorflow
from ringtrain.checkpoint import ShardedCheckpoints
from ringtrain.errors import ConfigurationError
from ringtrain_tensorflow.distribute import HorovodStrategy
from ringtrain_tensorflow.keras.api import IS_KERAS_2

RUN_IN = [
    {"name": "keras-3", "framework": "keras", "env": {"RINGTRAIN_TRANSPORT": "grpc"}, "ranks": [2]},
    {
        "name": "keras-3",
        "framework": "keras",
        "env": {"RINGTRAIN_TRANSPORT": "grpc"},
        "ranks": [3],
        # Parts of uneven size, layers in several parts, and sums of more than two ranks.
        "tests": [
            "test_rules",
            "test_adam",
            "test_gradient_that_one_rank_alone_has",
            "test_state_goes_on_at_another_number_of_ranks",
        ],
    },
    {
        "name": "keras-3",
        "framework": "keras",
        "env": {"RINGTRAIN_TRANSPORT": "grpc"},
        "ranks": [1],
        # What one rank does otherwise: it has the whole state, and asks no other about a scale.
        "tests": [
            "test_rules",
            "test_adam",
            "test_sparse_gradients",
            "test_loss_scale",
            "test_a_loss_scale_around_it_is_refused",
            "test_files_of_keras_and_tensorflow_carry_the_state",
        ],
    },
    {
        "name": "keras-2",
        "framework": "tf_keras",
        "env": {"TF_USE_LEGACY_KERAS": "1"},  # through shared memory
        "ranks": [2],
        # Those with methods, scales, callbacks and files of Keras 2. Without: loops of graphs, and parts of the state.
        "tests": [
            "test_rules",
            "test_adam",
            "test_sparse_gradients",
            "test_embedding",
            "test_constraint_and_layer_without_gradient",
            "test_state_goes_on_at_another_number_of_ranks",
            "test_gradient_that_one_rank_alone_has",
            "test_loss_scale",
            "test_mixed_float16",
            "test_loss_scale_goes_on",
            "test_a_loss_scale_around_it_is_refused",
            "test_momentum_correction",
            "test_settings_after_the_build",
            "test_optimizers_without_a_rule_are_refused",
            "test_files_of_keras_and_tensorflow_carry_the_state",
            "test_count_without_moments",
            "test_backup_and_restore",
            "test_load_model_refuses_the_state_of_a_host_optimizer",
        ],
    },
]

STEPS = 6
ALONE = [hvd.add_process_set([rank]) for rank in range(SIZE)][RANK]


def like_keras(optimizer: Callable[[], Any], *arguments: Any, **options: Any) -> Any:
    of_host = {"wrap": hvd.HostOptimizer, "built_in_fit": True}  # which costs it nothing: TensorFlow creates no state
    return like_one_process(*arguments, optimizer=optimizer, **of_host, **options)


def adamw() -> Any:
    """Keras' AdamW, with variables that do not decay."""
    made = keras.optimizers.AdamW(1e-2, weight_decay=0.3)
    made.exclude_from_weight_decay(var_names=["bias"])
    return made


RULES: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "weight_decay": lambda: keras.optimizers.SGD(0.1, weight_decay=0.1),
    "nesterov": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "cosine": schedule("cosine"),  # Keras' velocity has the rate of each update in it
    "adam": adam,
    "epsilon": lambda: keras.optimizers.Adam(1e-2, epsilon=1e-2),
    "adamw": adamw,
    "global_clipnorm": lambda: keras.optimizers.Adam(1e-2, global_clipnorm=0.05),
}
if not IS_KERAS_2:  # Each variable has one ratio, whichever ranks have its parts; Keras 2 has no Lamb.
    RULES["lamb"] = lambda: keras.optimizers.Lamb(1e-2)
    RULES["lamb_clipped"] = lambda: keras.optimizers.Lamb(1e-2, epsilon=1e-2, global_clipnorm=0.05)


def halve(optimizer: Any, variables: Sequence[Any]) -> None:
    for variable in variables:
        variable.assign(0.5 * tf.convert_to_tensor(variable))


def test_rules():
    """Eagerly; ranks' gradients differ, and values that a script sets between two updates count."""
    for name, rule in RULES.items():
        ours = updated(hvd.HostOptimizer(rule()), partial(gradients_of, RANK), halve)
        same_values(ours, updated(rule(), mean_of_ranks, halve), name)
    assert hasattr(keras.optimizers, "Lamb") != IS_KERAS_2


def test_adam():
    """Each rank holds its part of the state: two float32 numbers for each weight, 1/size of them here; Keras has
    none."""
    model = like_keras(adam)
    optimizer, weights = model.optimizer, sum(weight.size for weight in model.get_weights())
    whole = np.asarray(hvd.allreduce(float(optimizer.state_bytes))) * SIZE
    assert whole == 2 * 4 * weights
    assert optimizer.state_bytes <= 2 * 4 * (weights / SIZE + len(model.weights) * 16)
    assert all(np.size(value) == 1 for value in optimizer.variables)


def test_steps_per_execution():
    model = built(dense)
    model.compile(hvd.HostOptimizer(adam()), loss="mse", steps_per_execution=3)
    agree(fitted(model, epochs=2), reference(adam), 1e-4)


def test_sparse_gradients():
    """Summing repeated rows equals Keras' result if the update is linear in the gradient; otherwise the error requests
    the option."""
    linear, clipped = RULES["nesterov"], lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.05)
    rows = partial(mean_of_ranks, of=rows_of)
    for rule in [linear, adam] if IS_KERAS_2 else [linear]:  # Keras 2 sums such rows itself
        same_values(updated(hvd.HostOptimizer(rule()), partial(rows_of, RANK)), updated(rule(), rows), "rows")
    for rule in [clipped] if IS_KERAS_2 else [clipped, adam]:
        with pytest.raises(ConfigurationError, match=r"sparse.*sparse_as_dense=True.*DistributedOptimizer"):
            updated(hvd.HostOptimizer(rule()), partial(rows_of, RANK))
        expected = updated(rule(), rows)
        for wrap in (hvd.HostOptimizer, hvd.DistributedOptimizer):
            ours = updated(wrap(rule(), sparse_as_dense=True), partial(rows_of, RANK))
            same_values(ours, expected, wrap.__name__)


def test_embedding():
    like_keras(lambda: keras.optimizers.SGD(0.1, momentum=0.9), embedding, data=words)
    model = built(embedding)
    model.compile(hvd.HostOptimizer(RULES["global_clipnorm"]()), loss="mse")
    with pytest.raises(Exception, match=r"sparse.*sparse_as_dense=True.*DistributedOptimizer"):  # Keras adds to it
        fitted(model, words(RANK))


def test_constraint_and_layer_without_gradient():
    """The next update starts from the weights after Keras' constraint; a layer without gradient does not decay."""

    def make() -> Model:
        constrained = keras.layers.Dense(8, activation="tanh", kernel_constraint=keras.constraints.MaxNorm(0.5))
        return sequential(constrained, Unused())

    like_keras(lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1), make)


def test_bfloat16_policy():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        like_keras(adam, tolerance=3e-2)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def test_state_goes_on_at_another_number_of_ranks():
    """One rank loads the state that all ranks saved, and continues like an uninterrupted process."""
    first = fitted(compiled(hvd.HostOptimizer(schedule("steps")())))
    state, expected = first.optimizer.state_dict(), reference(schedule("steps"))
    if RANK < SIZE - 1:
        return
    second = compiled(hvd.HostOptimizer(schedule("steps")(), process_set=ALONE))
    second.optimizer.build(second.trainable_variables)
    second.optimizer.load_state_dict(state)
    agree(fitted(second, everyone()), expected, 1e-4)


@cache
def first() -> Model:
    """A model after one epoch with Adam."""
    return fitted(begun(adam))


def test_parts_of_the_state_go_on():
    """Each rank's part, by a checkpoint that all ranks write; rate and count with it."""
    optimizer = first().optimizer
    assert bool(optimizer.state_dict(root=0)) == (RANK == 0)
    folder = shared_folder()
    second = compiled(hvd.HostOptimizer(keras.optimizers.Adam(0.5)))
    second.optimizer.build(second.trainable_variables)
    with ShardedCheckpoints(f"file://{folder}") as checkpoints:
        checkpoints.save(1, {"optimizer": optimizer.shard_dict()})
        checkpoints.latest(lambda state: second.optimizer.load_state_dict(state["optimizer"]))
    assert float(np.asarray(second.optimizer.learning_rate)) == pytest.approx(1e-2)
    agree(fitted(second), reference(adam), 1e-4)


def test_strategy():
    """In a loop of one's own in a `tf.function`."""
    model, optimizer, strategy = built(dense), hvd.HostOptimizer(adam()), HorovodStrategy()
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        weights = model.trainable_variables
        strategy.apply_gradients(optimizer, list(zip(tape.gradient(loss, weights), weights, strict=True)))

    for x, y in [*batches(numbers(RANK))] * 2:
        step(x, y)
    agree(model, reference(adam), 1e-4)
    assert int(np.asarray(optimizer.iterations)) == optimizer.updates == 2 * STEPS


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
    for epochs, eager in ((2, False), (1, True)):
        ours = like_keras(
            scaled_adam,
            data=with_an_overflow,
            epochs=epochs,
            run_eagerly=eager,
            number_of=lambda m: scale_of(m.optimizer),
        )
        assert ours.optimizer.updates == epochs * (STEPS - 1)
        # of each epoch's six steps: doubled after two, halved, doubled after two, and one is left for the next
        assert scale_of(ours.optimizer) == 2.0 ** (100 + epochs)


def test_mixed_float16():
    """A whole model of that policy."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        like_keras(lambda: keras.mixed_precision.LossScaleOptimizer(adam()), tolerance=3e-2)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def test_loss_scale_goes_on():
    """State and scale are saved and loaded together: training from them once more has the same result."""
    model = fitted(compiled(hvd.HostOptimizer(scaled_adam())))
    optimizer = model.optimizer
    state, scale = optimizer.state_dict(), scale_of(optimizer)
    for _ in range(2):
        optimizer.load_state_dict(state)
        assert scale_of(optimizer) == scale > 2.0**100
        agree(fitted(model), reference(scaled_adam), 1e-4)
        assert scale_of(optimizer) > scale
    with pytest.raises(ConfigurationError, match="elastic=True does not support a LossScaleOptimizer"):
        hvd.HostOptimizer(scaled_adam(), elastic=True)


def test_a_loss_scale_around_it_is_refused():
    """The error describes a solution."""
    around, variable = keras.mixed_precision.LossScaleOptimizer(hvd.HostOptimizer(adam())), made_variables()[0]
    around.build([variable])
    with pytest.raises(Exception, match=r"inside: HostOptimizer\(keras.mixed_precision.LossScaleOptimizer"):
        around.apply_gradients([(tf.ones([5, 2]), variable)])


def test_momentum_correction():
    """Keras' velocities are scaled, as with DistributedOptimizer; a rate that a callback sets counts."""
    models = []
    for wrap in (hvd.HostOptimizer, hvd.DistributedOptimizer):
        momentum = keras.optimizers.SGD(0.04, momentum=0.9, nesterov=True)
        models.append(with_built_optimizer(compiled(wrap(momentum))))
        rates = [
            hvd.callbacks.LearningRateWarmupCallback(0.04, warmup_epochs=2),
            hvd.callbacks.LearningRateScheduleCallback(0.04, lambda epoch: 0.1, start_epoch=2),
        ]
        models[-1].fit(batches(numbers(RANK)), epochs=3, verbose=0, callbacks=rates)
    agree(models[0], models[1].get_weights(), 1e-5)


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
    """A state that rank 0 saves after `gather_state` continues as one uninterrupted process. Before it, TensorFlow's
    checkpoint is refused, saving a Keras file warns, and loading it, too; a single rank has the whole state."""
    trained, second = fitted(begun(adam)), begun(adam)
    if SIZE > 1:
        if RANK == 0:
            refuses_without_its_state(trained)
        trained.optimizer.gather_state()
    for save in WAYS:
        restore = save(trained, shared_folder())
        ringtrain.tensorflow.barrier()
        restore(second)
        assert second.optimizer.updates == STEPS
        agree(fitted(second), reference(adam), 1e-4)  # then the next file takes it back


def refuses_without_its_state(model: Model) -> None:
    with pytest.raises(ConfigurationError, match=r"gather_state\(\) on every rank"):
        saved_by_tensorflow(model, Path(tempfile.mkdtemp()))
    with pytest.warns(UserWarning, match=r"gather_state\(\) on every rank"):
        restore = saved_as_model(model, Path(tempfile.mkdtemp()))
    with pytest.raises(Exception, match=r"after 6 updates and no optimizer state.*gather_state"):  # Keras adds to it
        restore(begun(adam, ALONE))


def test_restore_before_the_build():
    """The state waits for the variables, as those of Keras' own optimizers do."""
    first().optimizer.gather_state()
    restore = saved_by_tensorflow(first(), shared_folder())
    ringtrain.tensorflow.barrier()
    second = compiled(hvd.HostOptimizer(adam()))
    restore(second)
    agree(fitted(second), reference(adam), 1e-4)


def test_count_without_moments():
    """A restore that brings the count alone, as of a file of Keras' own optimizer, ends in the first update."""
    variables, folder = made_variables(), Path(tempfile.mkdtemp())
    plain, ours = adam(), hvd.HostOptimizer(adam(), process_set=ALONE)
    for optimizer in (plain, ours):
        optimizer.build(variables)
    plain.iterations.assign(6)
    tf.train.Checkpoint(optimizer=plain).save(str(folder / "c"))
    tf.train.Checkpoint(optimizer=ours).restore(tf.train.latest_checkpoint(str(folder)))
    with pytest.raises(Exception, match=r"iterations is 6, but its moments are from update 0"):
        ours.apply_gradients(list(zip(gradients_of(RANK, 0), variables, strict=True)))


class Interrupted(keras.callbacks.Callback):
    """Ends training as a lost node would."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            raise InterruptedError


def test_backup_and_restore():
    """Keras' callback requires a separate folder on every rank; every rank saves the gathered state."""
    folder, gather = tempfile.mkdtemp(), hvd.callbacks.GatherState(root=None)

    def train(*more: Any) -> Model:
        model = begun(schedule("steps"))
        backup = keras.callbacks.BackupAndRestore(folder)
        model.fit(batches(numbers(RANK)), epochs=2, verbose=0, callbacks=[gather, backup, *more])
        return model

    with pytest.raises(InterruptedError):
        train(Interrupted())
    agree(train(), reference(schedule("steps")), 1e-4)


def test_load_model_refuses_the_state_of_a_host_optimizer():
    """The error occurs because loading creates a DistributedOptimizer; a file without updates loads."""
    folder, model = shared_folder(), first()
    model.optimizer.gather_state()
    saved_as_model(model, folder)
    ringtrain.tensorflow.barrier()
    with pytest.raises(ConfigurationError, match=r"model.keras.*compile=False.*load_weights"):
        hvd.load_model(folder / "model.keras")
    compiled(adam()).save(Path(new := tempfile.mkdtemp()) / "new.keras")
    assert int(np.asarray(hvd.load_model(Path(new) / "new.keras").optimizer.iterations)) == 0
