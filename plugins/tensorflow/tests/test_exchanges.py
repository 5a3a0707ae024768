"""Checks of allgather, broadcast and alltoall of ringtrain.tensorflow against numpy, run on every rank."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_values import (
    DIMS,
    FLOATS,
    INTEGERS,
    MODES,
    RANK,
    RANKS,
    SIZE,
    cases,
    gradient_cases,
    gradient_of,
    numbers,
    same,
    spread,
    value,
)

import ringtrain.tensorflow as hvd

RUN_IN = {"framework": "keras", "ranks": [1, 3]}


def test_allgather():
    for dtype, dim in cases():
        result = hvd.allgather(value(RANK, dim, dtype, RANK + 1))
        same(result, np.concatenate([numbers(rank, dim, rank + 1) for rank in RANKS]), (dtype, dim))
    for dtype in (*FLOATS, *INTEGERS):
        results = hvd.grouped_allgather([value(RANK, dim, dtype, RANK + dim) for dim in DIMS])
        for dim, result in zip(DIMS, results, strict=True):
            same(result, np.concatenate([numbers(rank, dim, rank + dim) for rank in RANKS]), (dtype, dim))


def test_allgather_gradient():
    """The mean of all ranks' gradients: every row of the output weighs its place, and ranks weigh theirs
    differently."""

    def weighed(y: tf.Tensor) -> tf.Tensor:
        return y * tf.reshape(tf.cast(tf.range(tf.shape(y)[0]), y.dtype), [-1] + [1] * (len(y.shape) - 1))

    start = sum(rank + 1 for rank in range(RANK))
    rows = sum(rank + 1.0 for rank in RANKS) / SIZE * np.arange(start, start + RANK + 1)
    for dtype, dim, graph in gradient_cases():
        x = value(RANK, dim, dtype, RANK + 1)
        for gather in (hvd.allgather, lambda x: hvd.grouped_allgather([x, x])[1]):
            grad = gradient_of(lambda x, g=gather: weighed(g(x)), x, graph)
            same(grad, spread(rows, x), (dtype, dim, graph), dtype)


def test_broadcast():
    for root in RANKS:
        for dtype, dim in cases():
            same(hvd.broadcast(value(RANK, dim, dtype), root), numbers(root, dim), (root, dtype, dim))


def test_broadcast_gradient():
    for root in {0, SIZE - 1}:
        flows = sum(rank + 1.0 for rank in RANKS) / SIZE if root == RANK else 0.0
        for dtype, dim, graph in gradient_cases():
            x = value(RANK, dim, dtype)
            grad = gradient_of(lambda x, r=root: hvd.broadcast(x, r), x, graph)
            same(grad, np.full(tuple(x.shape), flows), (root, dtype, dim, graph), dtype)


def test_alltoall():
    for dtype, dim in cases():
        result = hvd.alltoall(value(RANK, dim, dtype, 2 * SIZE))
        sent = [numbers(rank, dim, 2 * SIZE)[2 * RANK : 2 * RANK + 2] for rank in RANKS]
        same(result, np.concatenate(sent), (dtype, dim))


def test_alltoall_splits():
    """Rank r sends (r + i) % 3 rows to rank i: some send nothing to some."""
    splits = [[(rank + to) % 3 for to in RANKS] for rank in RANKS]
    counts = [splits[rank][RANK] for rank in RANKS]
    for wrap in MODES.values():
        exchange = wrap(hvd.alltoall)
        for dtype, dim in cases():
            own = value(RANK, dim, dtype, sum(splits[RANK]))
            y, received = exchange(own, tf.constant(splits[RANK]))
            cuts = [np.cumsum([0, *splits[rank]]) for rank in RANKS]
            sent = [numbers(r, dim, cuts[r][-1])[cuts[r][RANK] : cuts[r][RANK + 1]] for r in RANKS]
            same(y, np.concatenate(sent), (dtype, dim))
            assert received.numpy().tolist() == counts


def test_alltoall_rank_that_sends_nothing():
    rows = 0 if RANK == 0 else SIZE
    for wrap in MODES.values():
        result, received = wrap(hvd.alltoall)(tf.ones((rows, 2)), tf.fill([SIZE], rows // SIZE))
        assert received.numpy().tolist() == [0] + [1] * (SIZE - 1)
        assert result.shape == (SIZE - 1, 2)
        nothing, none = wrap(hvd.alltoall)(tf.ones((0, 2)), tf.zeros([SIZE], tf.int32))
        assert (nothing.shape, none.numpy().tolist()) == ((0, 2), [0] * SIZE)


def test_alltoall_gradient():
    """Gradients go back the way that the rows came, weighed by the rank that they were sent to."""
    splits = [(RANK + to) % 3 for to in RANKS]
    weights = np.repeat([to + 1.0 for to in RANKS], splits)
    for dtype, dim, graph in gradient_cases():
        x = value(RANK, dim, dtype, sum(splits))
        grad = gradient_of(lambda x: hvd.alltoall(x, splits)[0], x, graph)
        same(grad, spread(weights, x), (dtype, dim, graph))


def test_broadcast_variables():
    for wrap in MODES.values():
        variables = [tf.Variable(value(RANK, dim)) for dim in DIMS] + [tf.Variable(RANK)]

        @wrap
        def broadcast(variables=variables):
            hvd.broadcast_variables(variables, SIZE - 1, inplace=True)

        broadcast()
        for dim, variable in zip(DIMS, variables, strict=False):
            same(variable, numbers(SIZE - 1, dim), dim)
        assert int(variables[-1]) == SIZE - 1
    hvd.broadcast_variables([], 0)
    with pytest.raises(ValueError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)
