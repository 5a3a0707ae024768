"""Checks of ringtrain.tensorflow with the optimizers, hooks and sessions of `tf.compat.v1`, run on every rank."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from test_tensorflow_training import RANK, SIZE, batch, pooled

import ringtrain.tensorflow as hvd

RUN_IN = [
    {"framework": "keras", "ranks": [1, 3]},
    {
        "framework": "keras",
        "ranks": [2],
        "tests": [
            "test_v1_optimizer_with_adasum",
            "test_v1_optimizer_with_adasum_where_ranks_lack_different_gradients",
        ],
    },
]

RULES = {
    "sgd": lambda: tf.compat.v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf.compat.v1.train.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: tf.compat.v1.train.AdamOptimizer(1e-2),
}


def trained(optimizer: Callable, data: list, cycle: int = 1, clip: bool = False) -> tuple[np.ndarray, int]:
    """Return weights after a run of the graph for each batch of `data`, and what `global_step` counted.

    `cycle`: weights may change only in every `cycle`-th run.
    """
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x, y = (tf.compat.v1.placeholder(tf.float32, [None, width]) for width in (6, 2))
        weights = tf.compat.v1.get_variable("w", initializer=tf.ones([6, 2]))
        used = tf.compat.v1.get_variable("b", initializer=tf.zeros([2]))
        tf.compat.v1.get_variable("unused", initializer=1.0)
        steps = tf.compat.v1.train.get_or_create_global_step()
        made = optimizer()
        pairs = made.compute_gradients(tf.reduce_mean(tf.square(tf.tanh(x @ weights) + used - y)))
        if clip:
            pairs = [(grad if grad is None else tf.clip_by_norm(grad, 0.1), variable) for grad, variable in pairs]
        update = made.apply_gradients(pairs, global_step=steps)
        session.run(tf.compat.v1.global_variables_initializer())
        for number, (inputs, targets) in enumerate(data, 1):
            before = session.run(weights)
            session.run(update, {x: inputs, y: targets})
            assert number % cycle == 0 or np.array_equal(session.run(weights), before), number
        return np.concatenate([session.run(weights).reshape(-1), session.run(used)]), session.run(steps)


def test_v1_optimizer_trains_like_one_process():
    for rule in RULES.values():
        ours, _ = trained(lambda rule=rule: hvd.DistributedOptimizer(rule()), [batch(RANK, n) for n in range(20)])
        plain, _ = trained(rule, [pooled(n) for n in range(20)])
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)
        for row in hvd.allgather(ours[None]).numpy():
            np.testing.assert_array_equal(row, ours)


def test_v1_optimizer_accumulates():
    """Two runs and their mean are one run over both batches; the graph's steps are all counted."""
    for rule in RULES.values():
        for clip in (False, True):
            ours, steps = trained(
                lambda rule=rule: hvd.DistributedOptimizer(
                    rule(), backward_passes_per_step=2, average_aggregated_gradients=True
                ),
                [batch(RANK, n) for n in range(20)],
                cycle=2,
                clip=clip,
            )
            pairs = [(pooled(n), pooled(n + 1)) for n in range(0, 20, 2)]
            both = [tuple(np.concatenate(parts) for parts in zip(*pair, strict=True)) for pair in pairs]
            plain, _ = trained(rule, both, clip=clip)
            np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)
            assert steps == 20
    summed, _ = trained(
        lambda: hvd.DistributedOptimizer(RULES["sgd"](), backward_passes_per_step=2),
        [batch(RANK, n) for n in range(20)],
    )
    double, _ = trained(lambda: tf.compat.v1.train.GradientDescentOptimizer(0.2), both)
    np.testing.assert_allclose(summed, double, rtol=1e-5, atol=1e-5)


def test_v1_optimizer_with_adasum():
    """Ranks with the same batches make the steps of one of them; with others all end with the same bits."""
    if SIZE & (SIZE - 1):
        return
    for passes in (1, 2):

        def adasum(passes=passes):
            return hvd.DistributedOptimizer(RULES["momentum"](), op=hvd.Adasum, backward_passes_per_step=passes)

        alike, _ = trained(adasum, [batch(0, n) for n in range(6)])
        plain, _ = trained(RULES["momentum"], [batch(0, n) for n in range(6)])
        np.testing.assert_allclose(alike, plain, rtol=1e-5, atol=1e-5)
        ours, _ = trained(adasum, [batch(RANK, n) for n in range(6)])
        for row in hvd.allgather(ours[None]).numpy():
            np.testing.assert_array_equal(row, ours)
        between, _ = trained(adasum, [batch(RANK, n) for n in range(7)])
        assert (len(np.unique(hvd.allgather(between[None, :1]))) == SIZE) is (passes == 2 or SIZE == 1)


def test_v1_optimizer_with_adasum_where_ranks_lack_different_gradients():
    """A step is combined with those of the same variable, which does not change on ranks without its gradient."""
    if SIZE & (SIZE - 1):
        return
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [tf.compat.v1.get_variable(name, initializer=tf.zeros([2])) for name in "ab"]
        grads = [tf.fill([2], 1.0), None] if RANK == 0 else [None, tf.fill([2], 10.0)]
        optimizer = hvd.DistributedOptimizer(RULES["sgd"](), op=hvd.Adasum)
        update = optimizer.apply_gradients(zip(grads, variables, strict=True))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(update)
        first, second = session.run(variables)
    np.testing.assert_allclose(first, [-0.1] * 2)
    np.testing.assert_allclose(second, [-1.0 if SIZE > 1 else 0.0] * 2)


def test_v1_optimizer_eagerly():
    """A loss is a function without a graph; sums over several passes need a graph."""
    weight = tf.Variable(1.0)
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
    optimizer.minimize(lambda: weight * float(RANK), var_list=[weight])
    np.testing.assert_allclose(weight, 1.0 - (SIZE - 1) / 2)
    with pytest.raises(ValueError, match="outside of a graph"):
        hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)


def test_v1_optimizer_local_variables():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        shared, local = (tf.compat.v1.get_variable(name, initializer=1.0) for name in ("shared", "local"))
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(1.0), scale_local_gradients=False
        )
        optimizer.register_local_var(local)
        train = optimizer.minimize((shared + local) * float(RANK))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train)
        np.testing.assert_allclose(session.run([shared, local]), [1.0 - (SIZE - 1) / 2, 1.0 - RANK])


def test_v1_optimizer_errors():
    plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    with pytest.raises(ValueError, match="optimizer is a str; expected"):
        hvd.DistributedOptimizer("sgd")
    with pytest.raises(ValueError, match="backward_passes_per_step is 0"):
        hvd.DistributedOptimizer(plain, backward_passes_per_step=0)
    with pytest.raises(ValueError, match="optimizer is a DistributedOptimizer already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(plain))
    with tf.Graph().as_default(), pytest.raises(ValueError, match=r"compute_gradients\(\)"):
        hvd.DistributedOptimizer(plain, backward_passes_per_step=2).apply_gradients([])


def test_hook_of_v1_sessions():
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("v", initializer=float(RANK))
        gathered = hvd.allgather(tf.constant([float(RANK)]))
        hook = hvd.BroadcastGlobalVariablesHook(SIZE - 1)
        with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]) as session:
            assert session.run(variable) == SIZE - 1
            assert session.run(gathered).tolist() == [float(rank) for rank in range(SIZE)]
