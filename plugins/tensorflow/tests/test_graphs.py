"""Checks of ringtrain.tensorflow in graphs, whose operations run in any order: collectives without names find each
other, and waiting ones hold none of TensorFlow's threads. Run on every rank of a world.
"""

import contextlib
import io
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_values import RANK, RANKS, SIZE

import ringtrain.tensorflow as hvd
from ringtrain._core.process_groups.uncaught import shorten_lost_peers
from ringtrain.errors import PeerLost
from ringtrain_tensorflow.calls import host_call

RUN_IN = {"framework": "keras", "ranks": [1, 3]}

hvd.init()
COUNT = 5
TOTAL = sum(rank + 1.0 for rank in RANKS)


def session(threads: int) -> tf.compat.v1.Session:
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads, use_per_session_threads=True)
    return tf.compat.v1.Session(config=config)


def one_after_the_other(tensors: list) -> list:
    """Return `tensors`, which become known in their order on even ranks, in the opposite one on odd ranks."""
    order = range(len(tensors)) if RANK % 2 == 0 else reversed(range(len(tensors)))
    held = [tf.compat.v1.placeholder_with_default(x, x.shape) for x in tensors]  # no constants to fold
    before: list = []
    for index in order:
        with tf.control_dependencies(before):
            held[index] = tf.identity(held[index])
        before = [held[index]]
    return held


def test_unnamed_allreduces_in_a_session():
    """Independent operations are paired by where they stand in the graph; one thread is enough for all of them."""
    for threads in (1, 2, 4):
        with tf.Graph().as_default(), session(threads) as running:
            given = one_after_the_other([tf.fill([2], 10.0**i * (RANK + 1)) for i in range(COUNT)])
            sums = [hvd.allreduce(x, op=hvd.Sum) for x in given]
            for _ in range(3):
                np.testing.assert_allclose(running.run(sums), [[10.0**i * TOTAL] * 2 for i in range(COUNT)], rtol=1e-6)


def test_unnamed_slices_in_a_session():
    with tf.Graph().as_default(), session(1) as running:
        values = one_after_the_other([tf.fill([1, 2], 10.0**i * (RANK + 1)) for i in range(COUNT)])
        slices = [tf.IndexedSlices(v, tf.constant([RANK]), tf.constant([SIZE, 2])) for v in values]
        sums = [tf.convert_to_tensor(s) for s in hvd.grouped_allreduce(slices, op=hvd.Sum)]
        rows = np.array([[rank + 1.0] * 2 for rank in RANKS])
        for index, result in enumerate(running.run(sums)):
            np.testing.assert_allclose(result, 10.0**index * rows, rtol=1e-6)


def test_every_unnamed_collective_and_its_gradient_in_a_session():
    calls = [
        lambda x: hvd.allreduce(x, op=hvd.Sum),
        lambda x: hvd.grouped_allreduce([x], op=hvd.Product)[0],
        hvd.allgather,
        lambda x: hvd.broadcast(x, 0),
        hvd.alltoall,
        lambda x: hvd.reducescatter(x, op=hvd.Sum),
        lambda x: hvd.grouped_reducescatter([x])[0],
    ]
    with tf.Graph().as_default(), session(1) as running:
        given = one_after_the_other([tf.fill([SIZE], RANK + 2.0) for _ in calls])
        results = [call(x) for call, x in zip(calls, given, strict=True)]
        grads = [tf.gradients(y, x)[0] for y, x in zip(results, given, strict=True)]
        assert all(np.all(np.isfinite(value)) for value in running.run(results + grads))


def test_optimizer_of_embeddings_on_one_thread():
    with tf.Graph().as_default(), session(1) as running:
        tables = [tf.compat.v1.get_variable(f"table{i}", initializer=tf.zeros([SIZE, 2])) for i in range(4)]
        loss = tf.add_n([tf.reduce_sum(tf.nn.embedding_lookup(t, [RANK])) * 10.0**i for i, t in enumerate(tables)])
        train = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0)).minimize(loss)
        running.run(tf.compat.v1.global_variables_initializer())
        for _ in range(3):
            running.run(train)
        for index, table in enumerate(running.run(tables)):
            np.testing.assert_allclose(table, np.full((SIZE, 2), -3.0 * 10.0**index / SIZE), rtol=1e-5)


def test_two_optimizers_in_one_graph():
    """Gradients of equal shape under two optimizers of the same class, as in adversarial training, are not confused."""
    with tf.Graph().as_default(), session(1) as running:
        makers, judges = (tf.compat.v1.get_variable(name, initializer=0.0) for name in ("maker", "judge"))
        scales = one_after_the_other([tf.constant(1.0), tf.constant(100.0)])
        train = [
            hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0)).minimize(
                variable * scale, var_list=[variable]
            )
            for variable, scale in zip((makers, judges), scales, strict=True)
        ]
        running.run(tf.compat.v1.global_variables_initializer())
        running.run(train)
        assert running.run([makers, judges]) == [-1.0, -100.0]


def test_names_given_twice_in_a_graph():
    """The second name gets a number, like those of operations. Names under name scopes differ, unless scopes are
    ignored."""
    with tf.Graph().as_default(), session(1) as running:
        given = one_after_the_other([tf.constant(10.0**i) for i in range(4)])
        sums = [hvd.allreduce(x, op=hvd.Sum, name="same") for x in given[:2]]
        with tf.name_scope(f"rank{RANK}"):
            sums += [hvd.allreduce(x, op=hvd.Sum, name="same", ignore_name_scope=True) for x in given[2:]]
        np.testing.assert_allclose(running.run(sums), [10.0**i * SIZE for i in range(4)])


def test_branches_and_loops_of_a_session():
    with tf.Graph().as_default(), session(1) as running:
        given = one_after_the_other([tf.constant(10.0**i) for i in range(3)])
        sums = [tf.cond(x > 0, lambda x=x: hvd.allreduce(x, op=hvd.Sum), lambda x=x: -hvd.allreduce(x)) for x in given]
        sums.append(tf.while_loop(lambda y: y < 2.0, lambda y: [hvd.allreduce(y + 1.0)], [tf.constant(0.0)])[0])
        np.testing.assert_allclose(running.run(sums), [SIZE, 10.0 * SIZE, 100.0 * SIZE, 2.0])


def test_functions_called_from_threads():
    """Two functions at once, begun in a different order on each rank."""

    @tf.function
    def ones(x):
        return hvd.allreduce(x, op=hvd.Sum)

    @tf.function
    def hundreds(x):
        return hvd.allreduce(100.0 * x, op=hvd.Sum)

    results = {}

    def call(function, name):
        results[name] = float(function(tf.constant(1.0)))

    calls = [(ones, "ones"), (hundreds, "hundreds")]
    for _ in range(3):
        threads = [threading.Thread(target=call, args=c) for c in (calls if RANK % 2 else reversed(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert results == {"ones": SIZE, "hundreds": 100.0 * SIZE}


def test_function_that_one_rank_traces_more_often():
    @tf.function
    def total(x):
        return hvd.allreduce(tf.reduce_sum(x), op=hvd.Sum)

    @tf.function
    def other(x):
        return hvd.allreduce(tf.reduce_max(x), op=hvd.Sum)

    rows = 3 if RANK == 0 else 4  # a last batch that is shorter here
    assert float(total(tf.ones([4]))) == 4 * SIZE
    assert float(total(tf.ones([rows]))) == 4 * SIZE - 1
    assert float(other(tf.ones([4]))) == SIZE


def test_errors_have_the_types_of_tensorflow():
    """FailedPrecondition where ranks disagree, eagerly and in graphs; eagerly they are Ringtrain's as well."""

    def differs():
        return hvd.allreduce(tf.ones([2 + RANK]))

    def in_session(function):
        with tf.Graph().as_default(), session(2) as running:
            running.run(function())

    for run in (lambda f: f(), lambda f: tf.function(f)(), in_session):
        if SIZE > 1:
            with pytest.raises(tf.errors.FailedPreconditionError, match=r"shape is .* on rank"):
                run(differs)
        with pytest.raises(tf.errors.OpError, match="splits"):
            run(lambda: hvd.alltoall(tf.ones([SIZE]), splits=[7] * SIZE))
    if SIZE > 1:
        with pytest.raises(hvd.HorovodInternalError, match=r"shape is .* on rank"):
            differs()
    slices = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]))
    for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
        with pytest.raises(NotImplementedError, match=f"op is {op.value}"):
            hvd.allreduce(slices, op=op)


def test_a_lost_peer_in_a_graph_ends_in_one_line():
    """A script that does not catch TensorFlow's error prints one line about it, below the whole graph."""

    def lose(_):
        raise PeerLost(1, "rank 1 was lost: Socket closed")

    step = tf.function(lambda value: host_call(lose, [value], [tf.float32], [[]]))
    with pytest.raises(tf.errors.UnknownError) as caught:
        step(tf.constant(1.0))
    with contextlib.redirect_stderr(io.StringIO()) as told, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "excepthook", sys.__excepthook__)
        shorten_lost_peers()
        sys.excepthook(caught.type, caught.value, caught.tb)
    line, rest = told.getvalue().split("\n")
    assert rest == ""
    assert line.startswith("ringtrain.errors.PeerLost: rank 1 was lost: Socket closed (")
    assert "test_graphs.py:" in line


def test_factors_of_slices():
    for op, share in ((hvd.Sum, 1), (hvd.Average, SIZE)):
        slices = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]), tf.constant([1, 2]))
        result = tf.convert_to_tensor(hvd.allreduce(slices, op=op, prescale_factor=0.5, postscale_factor=6.0))
        np.testing.assert_allclose(result, [[3.0 * SIZE / share] * 2])
        whole = hvd.allreduce(tf.IndexedSlices(tf.ones((1, 2), tf.int32), tf.constant([0])), op=op)
        np.testing.assert_allclose(whole.values, np.full((SIZE, 2), 1 / share))
        (grouped,) = hvd.grouped_allreduce([slices], op=op, prescale_factor=4.0)
        np.testing.assert_allclose(tf.convert_to_tensor(grouped), [[4.0 * SIZE / share] * 2])


def test_a_step_that_failed_before_its_gradients_leaves_nothing():
    """The step fails on every rank, and the next step succeeds."""
    weight, failing = tf.Variable(tf.ones([2])), [True]

    def check(x):
        if failing[0]:
            raise ValueError("a bad batch")
        return x

    @tf.function
    def step(x):
        x = tf.ensure_shape(tf.py_function(check, [x], tf.float32), [2])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x * weight)
        return hvd.DistributedGradientTape(tape).gradient(loss, weight)

    for _ in range(2):
        failing[0] = True
        with pytest.raises(tf.errors.OpError, match="a bad batch"):
            step(tf.fill([2], 100.0))
        failing[0] = False
        np.testing.assert_allclose(step(tf.fill([2], RANK + 1.0)), [(SIZE + 1) / 2] * 2)
