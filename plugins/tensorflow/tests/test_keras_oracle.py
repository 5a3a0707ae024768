"""Ordinary training scripts on every rank of a world, and one process on the joined batches: the same weights.

Run with Keras 3 and Keras 2. Each check builds a model twice from one seed: one is trained by all ranks, each with
its own part of every batch, the other by rank 0 alone, with plain Keras on all parts. Losses that Keras reports
are compared, too.
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
    {"name": "keras-2", "framework": "tf_keras", "env": {"TF_USE_LEGACY_KERAS": "1"}, "ranks": [2]},
]

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
ROWS, STEPS, WIDTH = 4, 6, 6
Model = Any


def sequential(*layers: Any, shape: tuple[int, ...] = (WIDTH,), last: int = 2, **of_input: Any) -> Model:
    return keras.Sequential([keras.Input(shape, **of_input), *layers, keras.layers.Dense(last)])


def dense(last: int = 2, **options: Any) -> Model:
    return sequential(keras.layers.Dense(8, activation="tanh", **options), last=last)


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


@cache
def reference(optimizer: Callable[[], Any], epochs: int = 2) -> Model:
    """Return what one process has trained on all ranks' rows with the optimizer of Keras that `optimizer` returns."""
    return fitted(with_built_optimizer(compiled(optimizer())), everyone(), epochs)


def fitted(model: Model, parts: tuple[Any, Any] = numbers(RANK), epochs: int = 1) -> Model:
    """`model` after so many epochs with `parts`: this rank's, or those of all."""
    rows = len(parts[0]) // STEPS
    model.fit(*parts, batch_size=rows, epochs=epochs, shuffle=False, verbose=0)
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
    **of_compile: Any,
) -> Model:
    """Train both, compare weights and losses, and return the model that all ranks have trained.

    `built_in_fit`: Keras builds the ranks' optimizer in `fit`, not this function before it.
    """
    of_compile = {"loss": "mse", **of_compile}
    alone, ours = built(make), built(make)  # on all ranks, as Keras counts the names that it gives
    for model, of_model in ((alone, optimizer()), (ours, wrap(optimizer()))):
        before(model)
        model.compile(of_model, **of_compile)
        if model is alone or not built_in_fit:
            with_built_optimizer(model)

    def losses(model: Model, ranks: list[int], *first: Any) -> list[float]:
        """Return the loss of each epoch of `model` on the data of `ranks`."""
        options: dict[str, Any] = {"callbacks": [*first, *callbacks()]}
        if weights is not None:
            options["sample_weight"] = joined([weights(rank) for rank in ranks])
        x, y = (joined([data(rank)[part] for rank in ranks]) for part in range(2))
        fitted = model.fit(x, y, batch_size=len(ranks) * ROWS, epochs=epochs, shuffle=False, verbose=0, **options)
        return fitted.history["loss"]  # type: ignore[no-any-return]

    seen = losses(ours, [RANK], hvd.callbacks.MetricAverageCallback())
    # by one rank for all: it takes as long as the training of both
    expected = losses(alone, list(range(SIZE))) if RANK == 0 else []
    weights_then, expected = ringtrain.tensorflow.broadcast_object((alone.get_weights(), expected))
    alone.set_weights(weights_then)
    agree(ours, alone, tolerance)
    np.testing.assert_allclose(seen, expected, rtol=max(tolerance, 1e-4))
    return ours


def agree(model: Model, other: Model, tolerance: float) -> None:
    for ours, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@cache
def schedule(kind: str) -> Callable[[], Any]:
    made = {
        "exponential": lambda: keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.5),
        "cosine": lambda: keras.optimizers.schedules.CosineDecay(0.1, 12),
        "steps": lambda: keras.optimizers.schedules.PiecewiseConstantDecay([4, 8], [0.1, 0.05, 0.01]),
    }[kind]
    return lambda: keras.optimizers.SGD(made(), momentum=0.9)


test_sgd_with_nesterov_momentum = partial(
    like_one_process, optimizer=lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
)
test_adam = partial(like_one_process, optimizer=lambda: keras.optimizers.Adam(1e-2), built_in_fit=True)
test_adam_with_amsgrad = partial(like_one_process, optimizer=lambda: keras.optimizers.Adam(1e-2, amsgrad=True))
test_adamw = partial(like_one_process, optimizer=lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1))
test_rmsprop = partial(like_one_process, optimizer=lambda: keras.optimizers.RMSprop(1e-2, momentum=0.5))
test_adagrad = partial(like_one_process, optimizer=lambda: keras.optimizers.Adagrad(0.1))
test_ftrl = partial(like_one_process, optimizer=lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.01))
# Of each gradient, after the reduction.
test_clipnorm = partial(like_one_process, optimizer=lambda: keras.optimizers.SGD(0.1, clipnorm=0.05))
test_global_clipnorm = partial(like_one_process, optimizer=lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.1))
test_clipvalue = partial(like_one_process, optimizer=lambda: keras.optimizers.Adam(1e-2, clipvalue=0.01))
# use_ema: `fit` leaves the averages in the model.
test_average_of_weights = partial(
    like_one_process, optimizer=lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8)
)
test_average_of_weights_that_overwrites = partial(
    like_one_process,
    optimizer=lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3),
)
test_exponential_decay = partial(like_one_process, optimizer=schedule("exponential"))
test_cosine_decay = partial(like_one_process, optimizer=schedule("cosine"))
test_piecewise_decay = partial(like_one_process, optimizer=schedule("steps"))
test_callback_that_schedules = partial(
    like_one_process,
    epochs=3,
    callbacks=lambda: [keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))],
)
# Of the averaged loss, which each rank alone would see at another epoch.
test_plateaus_are_seen_by_all_ranks_at_once = partial(
    like_one_process,
    epochs=6,
    callbacks=lambda: [keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.1, patience=1, min_delta=0.05)],
)
test_early_stopping = partial(
    like_one_process,
    epochs=8,
    callbacks=lambda: [keras.callbacks.EarlyStopping(monitor="loss", min_delta=0.05, patience=1)],
)


def test_classes_with_accuracy():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = like_one_process(data=classes, loss=loss, metrics=["accuracy"])
    x, y = classes(RANK)
    assert 0 <= model.evaluate(x, y, verbose=0)[1] <= 1


test_binary_crossentropy = partial(
    like_one_process, lambda: dense(1), data=classes, loss=keras.losses.BinaryCrossentropy(from_logits=True)
)
test_huber = partial(like_one_process, loss=keras.losses.Huber(0.5))


def test_frozen_layer():
    def freeze(model: Model) -> None:
        model.layers[0].trainable = False

    like_one_process(before=freeze, optimizer=lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1))


class Unused(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        self.idle = self.add_weight(shape=(2,), initializer="ones", name="idle")

    def call(self, x: Any) -> Any:
        return x


def with_unused_layer() -> Model:
    return sequential(Unused())


# A variable that the loss does not depend on stands still, also with weight decay.
test_layer_without_gradient = partial(
    like_one_process, with_unused_layer, optimizer=lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1)
)
test_regularized_weights = partial(like_one_process, lambda: dense(kernel_regularizer=keras.regularizers.L2(0.05)))


def test_sample_weights():
    def weights(rank: int) -> np.ndarray:
        return np.random.default_rng(rank + 7).uniform(size=STEPS * ROWS).astype("float32")

    like_one_process(weights=weights)


test_steps_per_execution = partial(
    like_one_process, steps_per_execution=3, optimizer=lambda: keras.optimizers.Adam(1e-2)
)
test_eager_training = partial(like_one_process, run_eagerly=True)


def convolution() -> Model:
    return sequential(keras.layers.Conv2D(3, 3), keras.layers.MaxPooling2D(), keras.layers.Flatten(), shape=(6, 6, 1))


test_convolutions = partial(like_one_process, convolution, data=images, optimizer=lambda: keras.optimizers.SGD(0.01))


def embedding() -> Model:
    layers = keras.layers.Embedding(10, 4), keras.layers.GlobalAveragePooling1D()
    return sequential(*layers, dtype="int32")


def test_embedding():
    """Gradients of slices, gathered."""
    like_one_process(embedding, data=words)
    like_one_process(embedding, data=words, wrap=lambda o: hvd.DistributedOptimizer(o, sparse_as_dense=True))


# Its backward pass is a loop of the graph.
test_recurrent_layer = partial(
    like_one_process, lambda: sequential(keras.layers.Reshape((WIDTH, 1)), keras.layers.LSTM(4))
)
test_layer_normalization = partial(
    like_one_process, lambda: sequential(keras.layers.Dense(8), keras.layers.LayerNormalization())
)


def test_batch_normalization():
    """Over the joined batch with SyncBatchNormalization, plain in one process."""
    layers = [keras.layers.BatchNormalization, ringtrain.tensorflow.SyncBatchNormalization]

    def made(kind: Any) -> Model:
        return built(lambda: sequential(keras.layers.Dense(8), kind(momentum=0.5)))

    alone, ours = map(made, layers)
    alone.compile(keras.optimizers.SGD(0.05), loss="mse")
    ours.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), loss="mse")
    agree(
        *(fitted(with_built_optimizer(model), rows) for model, rows in ((ours, numbers(RANK)), (alone, everyone()))),
        1e-3,
    )


def test_two_outputs_with_weights():
    def make() -> Model:
        inputs = keras.Input((WIDTH,))
        middle = keras.layers.Dense(8, activation="tanh")(inputs)
        outputs = [keras.layers.Dense(2, name="a")(middle), keras.layers.Dense(2, name="b")(middle)]
        return keras.Model(inputs, keras.layers.Concatenate()([outputs[0], 0.3 * outputs[1]]))

    like_one_process(make, data=lambda rank: (numbers(rank)[0], np.tile(numbers(rank)[1], 2)))


def test_accumulation_of_keras():
    """Keras' own, of Keras 3: it adds up what each pass has reduced."""
    if not IS_KERAS_2:
        like_one_process(optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2))


def test_passes_count_as_in_horovod():
    """Each pass counts for an update rule that looks at the count; Keras' own accumulation counts updates."""
    plain = lambda **options: keras.optimizers.Adam(1e-2, **options)  # noqa: E731
    passes = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
    ours = fitted(with_built_optimizer(compiled(hvd.DistributedOptimizer(plain(), **passes))))
    assert int(np.asarray(ours.optimizer.iterations)) == STEPS
    if not IS_KERAS_2:
        theirs = fitted(with_built_optimizer(compiled(plain(gradient_accumulation_steps=2))))
        assert int(np.asarray(theirs.optimizer.iterations)) == STEPS / 2


test_half_precision_on_the_wire = partial(
    like_one_process, wrap=lambda o: hvd.DistributedOptimizer(o, compression=hvd.Compression.fp16), tolerance=5e-3
)
test_groups = partial(like_one_process, wrap=lambda o: hvd.DistributedOptimizer(o, groups=2))


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

    alone, ours = built(make), built(make)
    alone.compile(keras.optimizers.Adam(1e-2))
    ours.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-2)))
    agree(fitted(with_built_optimizer(ours)), fitted(with_built_optimizer(alone), everyone()), 1e-4)


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
    methods = ["apply_gradients"] if IS_KERAS_2 else ["apply_gradients", "apply"]
    for method in methods:
        like_one_process(optimizer=partial(clipping, method), data=uneven)
    if not IS_KERAS_2:
        like_one_process(optimizer=partial(clipping, "apply_gradients"), data=uneven, run_eagerly=True)


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


def by_function(tape_of: Callable[[Any], Any], parts: list[Any], rows: int) -> Model:
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
    ours = by_function(ringtrain.tensorflow.DistributedGradientTape, list(numbers(RANK)), ROWS)
    agree(ours, by_function(lambda tape: tape, list(everyone()), SIZE * ROWS), 1e-4)


def test_restart_in_the_middle():
    """Rank 0's file has the optimizer's state; all ranks go on from it as one process that was not interrupted."""
    folder = Path(tempfile.gettempdir()) / f"oracle-{os.getppid()}"
    folder.mkdir(exist_ok=True)
    file = str(folder / "model.keras")
    adam = partial(keras.optimizers.Adam, 1e-2)
    first = fitted(with_built_optimizer(compiled(hvd.DistributedOptimizer(adam()))), epochs=2)
    if RANK == 0:
        first.save(file)
    hvd.allreduce(0.0)
    second = hvd.load_model(file) if RANK == 0 else built(dense)
    if RANK:
        second.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.5)), loss="mse")
    again = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    second.fit(*numbers(RANK), batch_size=ROWS, initial_epoch=2, epochs=4, shuffle=False, verbose=0, callbacks=again)
    agree(second, reference(adam, 4), 1e-4)


def test_xla_is_refused_in_words():
    """Collectives leave the graph, which XLA compiles as a whole; the error mentions it."""
    model = built(dense)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse", jit_compile=True)
    if SIZE > 1:
        with pytest.raises(Exception, match=r"RingtrainCall|jit_compile"):
            model.fit(*numbers(RANK), batch_size=ROWS, verbose=0)
