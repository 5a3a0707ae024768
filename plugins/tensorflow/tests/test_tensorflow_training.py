"""Checks of training with ringtrain.tensorflow, run on every rank of a world.

The reference is one process on the pooled batch, which rank 0 computes for all.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import ringtrain.tensorflow as hvd
from ringtrain.step_time import measured

RUN_IN = [
    {"framework": "keras", "ranks": [1, 3]},
    {
        "name": "keras-2",
        "framework": "tf_keras",
        "env": {"TF_USE_LEGACY_KERAS": "1"},
        "ranks": [2],
        # Those with layers and optimizers of Keras.
        "tests": [
            "test_tape_trains_like_one_process",
            "test_host_strategy_trains_like_one_process",
            "test_local_layers",
            "test_sync_batch_normalization",
            "test_where_the_time_of_a_step_goes",
        ],
    },
]

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
STEPS = 20
RULES = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(1e-2),
}


def network(seed: int = 0) -> keras.Sequential:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(8, activation="tanh")]
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(2)])


def batch(rank: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng([rank, step])
    return generator.normal(size=(4, 6)).astype("float32"), generator.normal(size=(4, 2)).astype("float32")


def pooled(step: int) -> tuple[np.ndarray, np.ndarray]:
    everyone = [batch(rank, step) for rank in range(SIZE)]
    return tuple(np.concatenate(parts) for parts in zip(*everyone, strict=True))


def stepper(model: keras.Model, optimizer, tape_of=lambda tape: tape, apply=None):
    """A compiled step of training."""
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        grads = tape_of(tape).gradient(loss, model.trainable_variables)
        pairs = zip(grads, model.trainable_variables, strict=True)
        (apply or optimizer.apply_gradients)(pairs)

    return step


@functools.cache
def reference(rule: str) -> list[np.ndarray]:
    """Collective."""

    def trained() -> list[np.ndarray]:
        model = network()
        step = stepper(model, RULES[rule]())
        for number in range(STEPS):
            step(*pooled(number))
        return model.get_weights()

    return hvd.broadcast_object(trained() if RANK == 0 else None)


def agree(model: keras.Model, expected: list[np.ndarray], tolerance: float = 1e-5) -> None:
    for ours, theirs in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def same_everywhere(model: keras.Model) -> None:
    """Assert that all ranks have the same bits."""
    flat = np.concatenate([weight.reshape(-1) for weight in model.get_weights()])
    for row in hvd.allgather(flat[None]).numpy():
        np.testing.assert_array_equal(row, flat)


def test_tape_trains_like_one_process():
    model = network()
    step = stepper(model, RULES["momentum"](), hvd.DistributedGradientTape)
    for number in range(STEPS):
        step(*batch(RANK, number))
    agree(model, reference("momentum"))
    same_everywhere(model)


def test_host_strategy_trains_like_one_process():
    strategy = hvd.HostStrategy()
    with strategy.scope():
        model, optimizer = network(), RULES["momentum"]()
    step = stepper(model, optimizer, apply=functools.partial(strategy.apply_gradients, optimizer))
    for number in range(STEPS):
        step(*batch(RANK, number))
    agree(model, reference("momentum"))
    same_everywhere(model)
    held = [getattr(v, "_value", v) for v in [*model.variables, *optimizer.variables]]
    assert all("CPU" in variable.device for variable in held)


# Which of four variables the loss of a rank depends on; of the last one no rank's does.
LACKING = {
    "one-rank-lacks": lambda rank: [0, 2] if rank == 0 else [0, 1, 2],
    "each-another": lambda rank: [rank % 3],
}


def joined_gradients(variables, uses) -> list:
    """Return gradients of the mean of all ranks' losses in one process; None if no rank's loss depends on the
    variable."""
    with tf.GradientTape() as tape:
        loss = tf.add_n([loss_using(variables, uses(rank), rank) for rank in range(SIZE)]) / SIZE
    return tape.gradient(loss, variables)


def loss_using(variables, indices, rank: int):
    return tf.add_n([(rank + 1.0) * 10.0**i * tf.reduce_sum(variables[i] ** 2) for i in indices])


def own_gradients(way: str, variables, uses) -> list:
    with tf.GradientTape() as tape:
        loss = loss_using(variables, uses(RANK), RANK)
    if way == "tape":
        return hvd.DistributedGradientTape(tape).gradient(loss, variables)
    if way == "groups":
        return hvd.DistributedGradientTape(tape, groups=[variables]).gradient(loss, variables)
    return hvd.HostStrategy().reduce_gradients(tape.gradient(loss, variables), variables)


def test_gradients_that_some_ranks_lack():
    """The result equals one process on the joined batch: zeros if another rank has a gradient, None if no rank has
    one."""
    variables = [tf.Variable(tf.fill([2], index + 1.0)) for index in range(4)]
    for uses in LACKING.values():
        expected = joined_gradients(variables, uses)
        for way in ("tape", "groups", "host"):
            ways = functools.partial(own_gradients, way, variables, uses)
            for found in (ways(), tf.function(ways)()):
                assert [grad is None for grad in found] == [wanted is None for wanted in expected]
                for grad, wanted in zip(found, expected, strict=True):
                    np.testing.assert_allclose(*([0], [0]) if wanted is None else (grad, wanted), rtol=1e-6)


def test_a_graph_that_is_built_again_agrees_anew():
    """With two losses over separate variables, a function's second graph has other gradients."""
    variables = [tf.Variable(tf.ones([2])) for _ in range(2)]
    sizes = []

    @tf.function
    def step(index: int) -> list:
        grads = own_gradients("tape", variables, lambda rank: [index])
        sizes.append([grad is not None for grad in grads])
        return [grad for grad in grads if grad is not None]

    for index in (0, 1, 0):
        (grad,) = step(index)
        np.testing.assert_allclose(grad, [10.0**index * (SIZE + 1)] * 2)
    assert sizes == [[True, False], [False, True]]


def embedding_loss(table, rank: int, whole: bool):
    """Return a loss for which rank 0 looks up no rows; with `whole` the last rank uses the whole table."""
    loss = tf.reduce_sum(tf.gather(table, [rank % 4])) if rank else tf.zeros([])
    return loss + tf.reduce_sum(table) if whole and rank == SIZE - 1 else loss


def test_slices_that_some_ranks_lack_or_have_as_tensors():
    """The result equals one process on the joined batch, for an embedding that a rank has not looked up or has used
    whole."""
    table = tf.Variable(tf.ones([4, 2]))
    for whole in (False, True):
        with tf.GradientTape() as tape:
            joined = tf.add_n([embedding_loss(table, rank, whole) for rank in range(SIZE)]) / SIZE
        (expected,) = tape.gradient(joined, [table])

        def own(whole=whole):
            """Named anew for each loss: by their names ranks know which graph is meant."""
            with hvd.DistributedGradientTape(tf.GradientTape()) as ours:
                loss = embedding_loss(table, RANK, whole)
            (grad,) = ours.gradient(loss, [table])
            return tf.zeros_like(table) if grad is None else tf.convert_to_tensor(grad)

        own.__name__ = f"own_{whole}"
        for found in (own(), tf.function(own)()):
            wanted = tf.zeros_like(table) if expected is None else tf.convert_to_tensor(expected)
            np.testing.assert_allclose(found, wanted, rtol=1e-6)


def gradients_of(tape_of, x: tf.Tensor, variables) -> list:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum([tf.reduce_sum(x * variable) for variable in variables])
    return tape_of(tape).gradient(loss, variables)


def test_options_of_the_tape():
    """Rank r's gradients are r + 1 everywhere; with all options the mean is that of all ranks."""
    variables = [tf.Variable(tf.ones(3)), tf.Variable(tf.ones(3)), tf.Variable(tf.ones(3))]
    x, mean = tf.fill([3], RANK + 1.0), (SIZE + 1) / 2
    for options in (
        {"gradient_predivide_factor": 2.0},
        {"groups": 2},
        {"groups": [[variables[0], variables[2]]]},
        {"compression": hvd.Compression.fp16},
    ):
        for grad in gradients_of(lambda tape, o=options: hvd.DistributedGradientTape(tape, **o), x, variables):
            np.testing.assert_allclose(grad, [mean] * 3, rtol=1e-3)
    summed = gradients_of(lambda tape: hvd.DistributedGradientTape(tape, op=hvd.Sum), x, variables)
    np.testing.assert_allclose(summed[0], [mean * SIZE] * 3)
    with pytest.warns(DeprecationWarning, match="num_groups"):
        hvd.DistributedGradientTape(tf.GradientTape(), num_groups=1)
    for wrong in ({"op": hvd.Max}, {"op": hvd.Sum, "gradient_predivide_factor": 2.0}, {"groups": -1}):
        with pytest.raises(ValueError, match=r"expected|needs"):
            hvd.DistributedGradientTape(tf.GradientTape(), **wrong)


def test_structure_of_sources_and_missing_gradients():
    used, unused = tf.Variable(1.0), tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = used * float(RANK)
    grads = hvd.DistributedGradientTape(tape).gradient(loss, {"a": [used], "b": unused})
    assert grads["b"] is None
    np.testing.assert_allclose(grads["a"][0], (SIZE - 1) / 2)


def test_sparse_gradients():
    for sparse_as_dense in (False, True):
        table = tf.Variable(tf.ones((SIZE + 1, 2)))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [0, RANK + 1]))
        grad = hvd.DistributedGradientTape(tape, sparse_as_dense=sparse_as_dense).gradient(loss, table)
        assert isinstance(grad, tf.IndexedSlices) is ((not sparse_as_dense and SIZE > 1) or SIZE == 1)
        expected = np.array([SIZE, *[1.0] * SIZE])[:, None] * np.ones(2) / SIZE
        np.testing.assert_allclose(tf.convert_to_tensor(grad), expected, rtol=1e-6)


def test_local_sources():
    shared, local = tf.Variable(1.0), tf.Variable(1.0)
    for scale, divisor in ((True, SIZE), (False, 1)):
        with tf.GradientTape(persistent=True) as tape:
            loss = (shared + local) * float(RANK)
        distributed = hvd.DistributedGradientTape(tape, scale_local_gradients=scale)
        distributed.register_local_source(local)
        grads = distributed.gradient(loss, [shared, local])
        np.testing.assert_allclose(grads, [(SIZE - 1) / 2, RANK / divisor], rtol=1e-6)
        own, reduced = distributed.get_local_and_global_gradients(loss, [shared, local])
        ((own_source, own_grad),), ((source, grad),) = own, reduced
        assert (own_source is local, source is shared) == (True, True)
        np.testing.assert_allclose([own_grad, grad], [RANK / divisor, (SIZE - 1) / 2], rtol=1e-6)


def test_local_layers():
    """The argument is a list of layers, or one layer."""
    shared, local = keras.layers.Dense(1, use_bias=False), keras.layers.Dense(1, use_bias=False)
    x = tf.fill([1, 2], float(RANK))
    for layers in ([local], local):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(shared(x) + local(x))
        partial = hvd.PartialDistributedGradientTape(tape, local_layers=layers, scale_local_gradients=False)
        grads = partial.gradient(loss, [*shared.trainable_weights, *local.trainable_weights])
        np.testing.assert_allclose(grads[0], [[(SIZE - 1) / 2]] * 2)
        np.testing.assert_allclose(grads[1], [[float(RANK)]] * 2)
    with pytest.raises(ValueError, match="expected Keras layers"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=["dense"])


def test_sync_batch_normalization():
    """Output, gradients and moving averages are those of plain batch normalisation over the pooled batch."""
    inputs = [np.random.default_rng(rank).normal(size=(rank + 2, 5, 3)).astype("float32") for rank in range(SIZE)]
    mine = slice(sum(len(i) for i in inputs[:RANK]), sum(len(i) for i in inputs[: RANK + 1]))
    ours, plain = hvd.SyncBatchNormalization(), keras.layers.BatchNormalization()
    x, every = tf.constant(inputs[RANK]), tf.constant(np.concatenate(inputs))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, every])
        y, expected = ours(x, training=True), plain(every, training=True)
        loss, pooled_loss = tf.reduce_sum(y * (x + 1)), tf.reduce_sum(expected * (every + 1))
    np.testing.assert_allclose(y, expected[mine], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tape.gradient(loss, x), tape.gradient(pooled_loss, every)[mine], rtol=1e-3, atol=1e-3)
    for own, other in zip(ours.non_trainable_variables, plain.non_trainable_variables, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours(x, training=False), plain(x, training=False), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="fused"):
        hvd.SyncBatchNormalization(fused=True)


def test_where_the_time_of_a_step_goes():
    """The wait for reductions is measured; the update where Python makes it, not within a graph."""
    model, optimizer = network(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    measured.reset()
    step = stepper(model, optimizer)
    for number in range(3):
        step(*batch(RANK, number))
    in_graph = measured.take()
    assert (in_graph.get("reductionWait", 0) > 0, "updateTime" in in_graph) == (SIZE > 1, False)
    x, y = batch(RANK, 0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    optimizer.apply_gradients(
        zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
    )
    eagerly = measured.take()
    assert (eagerly.get("reductionWait", 0) > 0, eagerly["updateTime"] > 0) == (SIZE > 1, True)
