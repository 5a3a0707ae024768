"""Ordinary training scripts on every rank of a world, and one process on the joined batches: the same weights.

Each check builds a model from one seed, which all ranks train, each with its own part of every batch; rank 0 trains
another one alone, with plain Keras on all parts. Losses that Keras reports are compared, too. `fit` traces a step,
which takes longer than its training: rules and options that a graph does not change are checked eagerly, many in one
test, and a `fit` checks several things at once.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import ringtrain.keras as hvd
import ringtrain.tensorflow
from ringtrain_tensorflow.keras.api import IS_KERAS_2

RUN_IN = [
    {"name": "keras-3", "framework": "keras", "ranks": [2]},
    {
        "name": "keras-2",
        "framework": "tf_keras",
        "env": {"TF_USE_LEGACY_KERAS": "1"},
        "ranks": [2],
        # Those with optimizers, policies, callbacks and files of Keras 2. Kinds of layers and losses, and loops of
        # graphs, are TensorFlow's: there, the code is that of Keras 3.
        "tests": [
            "test_rules_and_options",
            "test_adam",
            "test_plateaus_and_the_end_are_seen_by_all_ranks_at_once",
            "test_classes_with_accuracy",
            "test_layers_with_and_without_gradients",
            "test_embedding",
            "test_batch_normalization",
            "test_passes_count_as_in_horovod",
            "test_groups_in_half_precision_with_a_schedule",
            "test_bfloat16_policy",
            "test_own_train_step",
            "test_own_methods_get_reduced_gradients",
            "test_computed_gradients_are_reduced",
            "test_restart_in_the_middle",
        ],
    },
]

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
ROWS, STEPS, WIDTH = 4, 6, 6
Model = Any


def sequential(*layers: Any, shape: tuple[int, ...] = (WIDTH,), **of_input: Any) -> Model:
    return keras.Sequential([keras.Input(shape, **of_input), *layers, keras.layers.Dense(2)])


def dense() -> Model:
    return sequential(keras.layers.Dense(8, activation="tanh"))


def numbers(rank: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rank `rank`'s rows of all steps."""
    random = np.random.default_rng([rank, seed])
    return (
        random.normal(size=(STEPS * ROWS, WIDTH)).astype("float32"),
        random.normal(size=(STEPS * ROWS, 2)).astype("float32"),
    )


def classes(rank: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = numbers(rank)
    return x, (y[:, 0] > 0).astype("int32")


def words(rank: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = numbers(rank)
    return (np.abs(x) * 4).astype("int32") % 10, y


def images(rank: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = numbers(rank)
    return np.repeat(x, 6, axis=1).reshape(-1, 6, 6, 1), y


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Batch after batch, each with all ranks' rows."""
    batches = [part.reshape(STEPS, ROWS, *part.shape[1:]) for part in parts]
    return np.concatenate(batches, axis=1).reshape(-1, *parts[0].shape[1:])


def built(make: Callable[[], Model]) -> Model:
    keras.utils.set_random_seed(3)
    return make()


def everyone() -> tuple[np.ndarray, np.ndarray]:
    """All ranks' rows of all steps, joined."""
    x, y = zip(*(numbers(rank) for rank in range(SIZE)), strict=True)
    return joined(x), joined(y)


def compiled(optimizer: Any) -> Model:
    model = built(dense)
    model.compile(optimizer, loss="mse")
    return model


def with_built_optimizer(model: Model) -> Model:
    """Otherwise `fit` builds it while it traces a step, and traces the step once more."""
    model.optimizer.build(model.trainable_variables)
    return model


def by_rank_0(train: Callable[[], Any]) -> Any:
    """Return what `train` returns on rank 0, to all ranks."""
    return ringtrain.tensorflow.broadcast_object(train() if RANK == 0 else None)


@cache
def reference(optimizer: Callable[[], Any], epochs: int = 2) -> list[np.ndarray]:
    """Return the weights after one process has trained on all ranks' rows with what `optimizer` returns. Collective."""

    def train() -> list[np.ndarray]:
        model = with_built_optimizer(compiled(optimizer()))
        return fitted(model, everyone(), epochs).get_weights()  # type: ignore[no-any-return]

    return by_rank_0(train)  # type: ignore[no-any-return]


def batches(parts: Sequence[np.ndarray]) -> tf.data.Dataset:
    """Return `parts` as batches, of which `fit` makes less than of arrays: for those it builds a pipeline each time."""
    return tf.data.Dataset.from_tensor_slices(tuple(parts)).batch(len(parts[0]) // STEPS)


def fitted(model: Model, parts: tuple[Any, Any] = numbers(RANK), epochs: int = 1) -> Model:
    """`model` after so many epochs with `parts`: this rank's, or those of all."""
    model.fit(batches(parts), epochs=epochs, verbose=0)
    return model


def like_one_process(
    make: Callable[[], Model] = dense,
    optimizer: Callable[[], Any] = lambda: keras.optimizers.SGD(0.1),
    data: Callable[[int], tuple[Any, Any]] = numbers,
    epochs: int = 2,
    tolerance: float = 1e-4,
    wrap: Callable[[Any], Any] = hvd.DistributedOptimizer,
    callbacks: Callable[[], list[Any]] = list,
    weights: Callable[[int], np.ndarray] | None = None,
    built_in_fit: bool = False,
    before: Callable[[Model], None] = lambda model: None,
    number_of: Callable[[Model], float] = lambda model: 0.0,
    **of_compile: Any,
) -> Model:
    """Train both, compare weights, losses and what `number_of` returns, and return the model that all have trained.

    `built_in_fit`: Keras builds the ranks' optimizer in `fit`, not this function before it.
    """
    of_compile = {"loss": "mse", **of_compile}

    def trained(wrap: Callable[[Any], Any], ranks: list[int], *first: Any) -> tuple[Model, list[float]]:
        """Return a model trained on the data of `ranks`, and its loss of each epoch."""
        model = built(make)
        before(model)
        model.compile(wrap(optimizer()), **of_compile)
        if not (first and built_in_fit):
            with_built_optimizer(model)
        parts = [joined([data(rank)[part] for rank in ranks]) for part in range(2)]
        if weights is not None:
            parts.append(joined([weights(rank) for rank in ranks]))
        seen = model.fit(batches(parts), epochs=epochs, verbose=0, callbacks=[*first, *callbacks()])
        return model, seen.history["loss"]

    def alone() -> tuple[list[np.ndarray], list[float], float]:
        model, losses = trained(lambda plain: plain, list(range(SIZE)))
        return model.get_weights(), losses, number_of(model)

    ours, seen = trained(wrap, [RANK], hvd.callbacks.MetricAverageCallback())
    expected, losses, number = by_rank_0(alone)
    agree(ours, expected, tolerance)
    np.testing.assert_allclose(seen, losses, rtol=max(tolerance, 1e-4))
    assert number_of(ours) == number
    return ours


def agree(model: Model, expected: Sequence[np.ndarray], tolerance: float) -> None:
    for ours, theirs in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def made_variables() -> list[Any]:
    make = tf.Variable if IS_KERAS_2 else keras.Variable
    return [make(np.linspace(-1, 1, 10, dtype="float32").reshape(5, 2), name="kernel"), make([0.5, -0.5], name="bias")]


def gradients_of(rank: int, step: int, scale: float = 1.0) -> list[tf.Tensor]:
    random = np.random.default_rng([rank, step])
    return [tf.constant(scale * random.normal(size=shape), tf.float32) for shape in ((5, 2), (2,))]


def rows_of(rank: int, step: int) -> list[tf.Tensor]:
    """Gradients of which that of a table has one row twice on every rank."""
    values, bias = gradients_of(rank, step)
    return [tf.IndexedSlices(values, tf.constant([0, 1, 1, 2 + rank % 3, 4]), tf.constant([5, 2])), bias]


def updated(
    optimizer: Any,
    gradients: Callable[[int], Sequence[Any]],
    between: Callable[[Any, Sequence[Any]], None] | None = None,
) -> list[np.ndarray]:
    """Return the values of variables after four updates with the `gradients` of each; `between` is called after two."""
    variables = made_variables()
    optimizer.build(variables)
    for step in range(4):
        optimizer.apply_gradients(list(zip(gradients(step), variables, strict=True)))
        if step == 1 and between:
            between(optimizer, variables)
    if getattr(optimizer, "use_ema", False):
        optimizer.finalize_variable_values(variables)
    return [np.array(tf.convert_to_tensor(variable)) for variable in variables]


def mean_of_ranks(step: int, of: Callable[[int, int], list[tf.Tensor]] = gradients_of) -> list[tf.Tensor]:
    everyone = [[tf.convert_to_tensor(grad) for grad in of(rank, step)] for rank in range(SIZE)]
    return [tf.add_n(grads) / SIZE for grads in zip(*everyone, strict=True)]


def same_values(ours: Sequence[np.ndarray], expected: Sequence[np.ndarray], case: str) -> None:
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=case)


@cache
def schedule(kind: str) -> Callable[[], Any]:
    made = {
        "exponential": lambda: keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.5),
        "cosine": lambda: keras.optimizers.schedules.CosineDecay(0.1, 12),
        "steps": lambda: keras.optimizers.schedules.PiecewiseConstantDecay([4, 8], [0.1, 0.05, 0.01]),
    }[kind]
    return lambda: keras.optimizers.SGD(made(), momentum=0.9)


def adam() -> Any:
    return keras.optimizers.Adam(1e-2)


RULES: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "amsgrad": lambda: keras.optimizers.Adam(1e-2, amsgrad=True),
    "adamw": lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(1e-2, momentum=0.5),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
    # Of each gradient, after the reduction.
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.05),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.1),
    "clipvalue": lambda: keras.optimizers.Adam(1e-2, clipvalue=0.01),
    "use_ema": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8),
    "ema_overwrite_frequency": lambda: keras.optimizers.SGD(
        0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
    ),
    "exponential": schedule("exponential"),
    "cosine": schedule("cosine"),
}


def test_rules_and_options():
    """Eagerly; ranks' gradients differ. Rows of a table are gathered, or summed before the update."""
    for name, rule in RULES.items():
        ours = updated(hvd.DistributedOptimizer(rule()), partial(gradients_of, RANK))
        same_values(ours, updated(rule(), mean_of_ranks), name)
    for options in ({}, {"sparse_as_dense": True}):
        rule = RULES["sgd" if not options else "amsgrad"]
        ours = updated(hvd.DistributedOptimizer(rule(), **options), partial(rows_of, RANK))
        same_values(ours, updated(rule(), partial(mean_of_ranks, of=rows_of)), f"rows with {options}")


test_adam = partial(like_one_process, optimizer=adam, built_in_fit=True)
# use_ema: `fit` leaves the averages in the model.
test_average_of_weights = partial(like_one_process, optimizer=RULES["ema_overwrite_frequency"])


def test_plateaus_and_the_end_are_seen_by_all_ranks_at_once():
    """In the averaged loss; each rank alone would see them at another epoch. A rate that a callback sets counts."""
    of_loss = {"monitor": "loss", "min_delta": 0.05}
    model = like_one_process(
        epochs=8,
        callbacks=lambda: [
            keras.callbacks.ReduceLROnPlateau(factor=0.1, patience=1, **of_loss),
            keras.callbacks.EarlyStopping(patience=2, **of_loss),
        ],
        number_of=lambda model: int(np.asarray(model.optimizer.iterations)),
    )
    assert float(np.asarray(model.optimizer.learning_rate)) < 0.05
    assert int(np.asarray(model.optimizer.iterations)) < 8 * STEPS


def test_classes_with_accuracy():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = like_one_process(data=classes, loss=loss, metrics=["accuracy"])
    x, y = classes(RANK)
    assert 0 <= model.evaluate(x, y, verbose=0)[1] <= 1


def test_losses_with_a_clipped_norm():
    """Huber's of the first output and the crossentropy of the second one."""
    huber, crossentropy = keras.losses.Huber(0.5), keras.losses.BinaryCrossentropy(from_logits=True)

    def loss(y: Any, seen: Any) -> Any:
        return huber(y[:, :1], seen[:, :1]) + 0.3 * crossentropy(tf.cast(y[:, 1:] > 0, tf.float32), seen[:, 1:])

    like_one_process(loss=loss, optimizer=RULES["global_clipnorm"])


class Unused(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        self.idle = self.add_weight(shape=(2,), initializer="ones", name="idle")

    def call(self, x: Any) -> Any:
        return x


def test_layers_with_and_without_gradients():
    """A frozen one, a regularized one, and a variable that the loss does not depend on: it stands still, also with
    weight decay. Rows of the data have weights."""

    def make() -> Model:
        regularized = keras.layers.Dense(8, kernel_regularizer=keras.regularizers.L2(0.05))
        return sequential(keras.layers.Dense(8, activation="tanh"), regularized, Unused())

    def freeze(model: Model) -> None:
        model.layers[0].trainable = False

    def weights(rank: int) -> np.ndarray:
        return np.random.default_rng(rank + 7).uniform(size=STEPS * ROWS).astype("float32")

    model = like_one_process(
        make, before=freeze, weights=weights, optimizer=lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1)
    )
    np.testing.assert_array_equal(model.layers[2].idle, [1.0, 1.0])


test_steps_per_execution = partial(like_one_process, steps_per_execution=3, optimizer=adam)
test_eager_training = partial(like_one_process, run_eagerly=True, epochs=1)


def test_kinds_of_layers():
    """The backward pass of the LSTM is a loop of the graph."""

    def make() -> Model:
        image = keras.layers.Conv2D(3, 3), keras.layers.MaxPooling2D(), keras.layers.Reshape((4, 3))
        return sequential(*image, keras.layers.LSTM(4), keras.layers.LayerNormalization(), shape=(6, 6, 1))

    like_one_process(make, data=images, optimizer=lambda: keras.optimizers.SGD(0.01))


def embedding() -> Model:
    layers = keras.layers.Embedding(10, 4), keras.layers.GlobalAveragePooling1D()
    return sequential(*layers, dtype="int32")


# Gradients of slices, gathered.
test_embedding = partial(like_one_process, embedding, data=words)


def test_batch_normalization():
    """Over the joined batch with SyncBatchNormalization, plain in one process."""

    def trained(kind: Any, wrap: Callable[[Any], Any], parts: tuple[Any, Any]) -> Model:
        model = built(lambda: sequential(keras.layers.Dense(8), kind(momentum=0.5)))
        model.compile(wrap(keras.optimizers.SGD(0.05)), loss="mse")
        return fitted(with_built_optimizer(model), parts)

    ours = trained(ringtrain.tensorflow.SyncBatchNormalization, hvd.DistributedOptimizer, numbers(RANK))
    plain = keras.layers.BatchNormalization
    agree(ours, by_rank_0(lambda: trained(plain, lambda one: one, everyone()).get_weights()), 1e-3)


def test_accumulation_of_keras():
    """Keras' own, of Keras 3: it adds up what each pass has reduced."""
    if not IS_KERAS_2:
        like_one_process(optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2))


def test_passes_count_as_in_horovod():
    """Each pass counts for an update rule that looks at the count; Keras' own accumulation counts updates."""
    plain = partial(keras.optimizers.Adam, 1e-2)
    ours = hvd.DistributedOptimizer(plain(), backward_passes_per_step=2, average_aggregated_gradients=True)
    updated(ours, partial(gradients_of, RANK))
    assert int(np.asarray(ours.iterations)) == 4
    if not IS_KERAS_2:
        theirs = plain(gradient_accumulation_steps=2)
        updated(theirs, mean_of_ranks)
        assert int(np.asarray(theirs.iterations)) == 2


test_groups_in_half_precision_with_a_schedule = partial(
    like_one_process,
    optimizer=schedule("steps"),
    wrap=lambda o: hvd.DistributedOptimizer(o, compression=hvd.Compression.fp16, groups=2),
    tolerance=5e-3,
)


def test_bfloat16_policy():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        like_one_process(tolerance=3e-2)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def test_own_train_step():
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = dense()

        def call(self, x: Any, training: bool = False) -> Any:
            return self.inner(x)

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {"loss": loss}

    def make() -> Model:
        model = Own()
        model(np.zeros((1, WIDTH), "float32"))
        return model

    ours = built(make)
    ours.compile(hvd.DistributedOptimizer(adam()))
    agree(fitted(with_built_optimizer(ours), epochs=2), reference(adam), 1e-4)


def clipping(method: str) -> Any:
    """SGD with a method of the user that clips its argument and calls Keras' method."""

    def clipped(grads: Any) -> Any:
        return tf.clip_by_global_norm([tf.convert_to_tensor(grad) for grad in grads], 0.2)[0]

    class Clipped(keras.optimizers.SGD):
        pass

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        grads, variables = zip(*grads_and_vars, strict=True)
        return super(Clipped, self).apply_gradients(zip(clipped(grads), variables, strict=True), *args, **kwargs)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        super(Clipped, self).apply(clipped(grads), trainable_variables)

    setattr(Clipped, method, {"apply_gradients": apply_gradients, "apply": apply}[method])
    return Clipped(0.1)


def test_own_methods_get_reduced_gradients():
    """A user's class gets reduced gradients, so its result is that of one process."""
    for method in ["apply_gradients"] if IS_KERAS_2 else ["apply_gradients", "apply"]:
        ours = updated(hvd.DistributedOptimizer(clipping(method)), lambda step: gradients_of(RANK, step, 1 + 3 * RANK))
        everyone = partial(mean_of_ranks, of=lambda rank, step: gradients_of(rank, step, 1 + 3 * rank))
        same_values(ours, updated(clipping(method), everyone), method)
    like_one_process(optimizer=partial(clipping, "apply_gradients"), data=uneven)


def uneven(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Ranks whose gradients differ in size."""
    x, y = numbers(rank)
    return x * (1 + 3 * rank), y


def test_computed_gradients_are_reduced():
    """Keras 2's compute_gradients, as Horovod's; apply_gradients does not reduce them again."""
    if not IS_KERAS_2:
        assert not hasattr(keras.optimizers.Optimizer, "compute_gradients")
        return
    for op in (ringtrain.tensorflow.Average, ringtrain.tensorflow.Sum):
        variable, optimizer = tf.Variable([1.0]), hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=op)
        expected = SIZE * (SIZE + 1) / 2 / (SIZE if op is ringtrain.tensorflow.Average else 1)
        pairs = optimizer.compute_gradients(lambda v=variable: (RANK + 1.0) * v, [variable])
        np.testing.assert_allclose(pairs[0][0], [expected], rtol=1e-6)
        optimizer.apply_gradients(pairs)
        np.testing.assert_allclose(variable, [1 - expected], rtol=1e-6)
        optimizer.minimize(lambda v=variable: (RANK + 1.0) * v, [variable])
        np.testing.assert_allclose(variable, [1 - 2 * expected], rtol=1e-5)


def by_function(tape_of: Callable[[Any], Any], parts: tuple[Any, Any], rows: int) -> Model:
    """A loop of one's own, its step compiled, with a penalty and a clipped gradient."""
    model, optimizer = built(dense), keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            loss += 0.01 * tf.add_n([tf.reduce_sum(tf.square(v)) for v in model.trainable_variables])
        grads, _ = tf.clip_by_global_norm(tape_of(tape).gradient(loss, model.trainable_variables), 0.5)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss

    x, y = parts
    for number in range(STEPS):
        step(x[number * rows : (number + 1) * rows], y[number * rows : (number + 1) * rows])
    return model


def test_function_with_the_tape():
    ours = by_function(ringtrain.tensorflow.DistributedGradientTape, numbers(RANK), ROWS)
    alone = by_rank_0(lambda: by_function(lambda tape: tape, everyone(), SIZE * ROWS).get_weights())
    agree(ours, alone, 1e-4)


def test_restart_in_the_middle():
    """Rank 0's file has the optimizer's state; all ranks go on from it as one process that was not interrupted."""
    folder = Path(tempfile.gettempdir()) / f"oracle-{os.getppid()}"
    folder.mkdir(exist_ok=True)
    file = str(folder / "model.keras")
    first = fitted(with_built_optimizer(compiled(hvd.DistributedOptimizer(adam()))))
    if RANK == 0:
        first.save(file)
    hvd.allreduce(0.0)
    second = hvd.load_model(file) if RANK == 0 else built(dense)
    if RANK:
        second.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.5)), loss="mse")
    again = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    x, y = numbers(RANK)  # as arrays
    second.fit(x, y, batch_size=ROWS, initial_epoch=1, epochs=2, shuffle=False, verbose=0, callbacks=again)
    agree(second, reference(adam), 1e-4)


def test_xla_is_refused_in_words():
    """Collectives leave the graph, which XLA compiles as a whole; the error mentions it."""
    model = built(dense)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse", jit_compile=True)
    if SIZE > 1:
        with pytest.raises(Exception, match=r"RingtrainCall|jit_compile"):
            model.fit(*numbers(RANK), batch_size=ROWS, verbose=0)
