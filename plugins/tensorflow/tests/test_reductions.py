"""Checks of allreduce and reducescatter of ringtrain.tensorflow against numpy, run on every rank of a world."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_values import (
    DIMS,
    FLOATS,
    FOLDS,
    INTEGERS,
    MODES,
    RANK,
    RANKS,
    SIZE,
    cases,
    gradient_cases,
    gradient_of,
    numbers,
    reduced,
    rows_of,
    same,
    spread,
    value,
)

import ringtrain.tensorflow as hvd

RUN_IN = [{"framework": "keras", "ranks": [1, 3]}, {"framework": "keras", "ranks": [2], "tests": ["test_adasum"]}]


def test_allreduce_forward():
    for dtype, dim in cases():
        for op in FOLDS:
            result = hvd.allreduce(value(RANK, dim, dtype), op=getattr(hvd, op))
            assert result.dtype.name == dtype
            same(result, reduced(dim, dtype, op), (dtype, dim, op), dtype)


def test_allreduce_in_a_graph():
    """Every dimension of float32, and matrices of every other dtype: tracing takes longer than the collectives."""
    for dtype in (*FLOATS, *INTEGERS):
        dims = DIMS if dtype == "float32" else [2]

        @tf.function
        def every_op(*tensors):
            return [[hvd.allreduce(tensor, op=getattr(hvd, op)) for tensor in tensors] for op in FOLDS]

        for op, results in zip(FOLDS, every_op(*(value(RANK, dim, dtype) for dim in dims)), strict=True):
            for dim, result in zip(dims, results, strict=True):
                same(result, reduced(dim, dtype, op), (dtype, dim, op), dtype)


def test_allreduce_factors():
    for dtype in FLOATS:
        result = hvd.allreduce(value(RANK, 2, dtype), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
        same(result, 1.5 * reduced(2, dtype, "Sum"), dtype, dtype)


def test_allreduce_gradient():
    for op in FOLDS:
        for dtype, dim, graph in gradient_cases():
            x = value(RANK, dim, dtype)
            grad = gradient_of(lambda x, o=op: hvd.allreduce(x, op=getattr(hvd, o), prescale_factor=2.0), x, graph)
            assert grad.dtype == x.dtype
            same(grad, allreduce_gradient(dim, op), (op, dtype, dim, graph), dtype)


def test_second_derivative():
    """The collective's part of the derivative would be missing; if that part is zero, the derivative is correct."""

    def second(x, function):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(function(x)) + tf.reduce_sum(x**3)
            grad = inner.gradient(y, x)
        return outer.gradient(grad, x)

    x = value(RANK, 1, "float32")
    for collective in (hvd.allreduce, hvd.allgather, lambda x: hvd.alltoall(x, [len(x)] + [0] * (SIZE - 1))[0]):
        same(second(x, collective), 6 * numbers(RANK, 1), "nothing", "float32")
        for call in (second, tf.function(second)):
            with pytest.raises(tf.errors.UnimplementedError, match="no second derivative"):
                call(x, lambda x, c=collective: c(x) ** 3)


def test_derivative_of_a_function_within_two_tapes():
    """TensorFlow builds the second derivative of a function there, although it is not used."""
    function = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum) ** 2)
    x = tf.fill([2], 1.0)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        grad = inner.gradient(y, x)
    np.testing.assert_allclose(grad, [2.0 * SIZE**2] * 2)


def test_types_that_can_not_be_reduced():
    """The ranks go on."""
    with pytest.raises(ValueError, match="can't be sent"):
        hvd.allreduce(tf.constant(["a"]))
    with pytest.raises(ValueError, match="can't be reduced with Max"):
        hvd.allreduce(tf.constant([1j]), op=hvd.Max)
    with pytest.raises(ValueError, match="can't be sent"):
        hvd.broadcast(tf.constant(["a"]), 0)
    np.testing.assert_array_equal(hvd.allgather(tf.constant([1j])), [1j] * SIZE)
    np.testing.assert_array_equal(hvd.allreduce(tf.constant([1j]), op=hvd.Sum), [1j * SIZE])


def allreduce_gradient(dim: int, op: str) -> np.ndarray:
    inputs, total = np.stack([numbers(rank, dim) for rank in RANKS]), sum(rank + 1.0 for rank in RANKS)
    if op in ("Sum", "Average"):
        return np.full(inputs[0].shape, 2 * total / (SIZE if op == "Average" else 1))
    if op == "Product":
        return total * 2**SIZE * np.prod(np.delete(inputs, RANK, axis=0), axis=0)
    held = inputs == FOLDS[op](inputs, axis=0)
    return 2 * total * held[RANK] / held.sum(axis=0)


def test_allreduce_of_variables_scalars_and_averages():
    same(hvd.allreduce(tf.Variable([1.0, 2.0]), op=hvd.Sum), SIZE * np.array([1.0, 2.0]), "variable")
    same(hvd.allreduce(tf.constant(float(RANK)), average=False), np.array(float(sum(RANKS))), "scalar")
    assert hvd.allreduce(tf.constant([True, RANK == 0]), op=hvd.Min).numpy().tolist() == [True, SIZE == 1]


def test_allreduce_compressed():
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        for dtype in ("float32", "int64"):
            result = hvd.allreduce(value(RANK, 2, dtype), op=hvd.Sum, compression=compression)
            assert result.dtype.name == dtype
            same(result, reduced(2, dtype, "Sum"), dtype)


def test_adasum():
    if SIZE & (SIZE - 1):
        with pytest.raises(RuntimeError, match=f"the process set has {SIZE}"):
            hvd.allreduce(value(RANK, 1), op=hvd.Adasum)
        return
    np.testing.assert_allclose(hvd.allreduce(tf.constant([3.0, 4.0]), op=hvd.Adasum), [3.0, 4.0], rtol=1e-6)
    assert hvd.allreduce(tf.one_hot(RANK, SIZE), op=hvd.Adasum).numpy().tolist() == [1.0] * SIZE


def test_allreduce_of_indexed_slices():
    for wrap in MODES.values():

        @wrap
        def reduce(values, indices):
            slices = tf.IndexedSlices(values, indices, dense_shape=tf.constant([SIZE + 1, 2]))
            return [tf.convert_to_tensor(hvd.allreduce(slices, op=op)) for op in (hvd.Sum, hvd.Average)]

        summed, averaged = reduce(tf.ones((2, 2)), tf.constant([0, RANK + 1]))
        expected = np.array([SIZE, *[1.0] * SIZE])[:, None] * np.ones(2)
        same(summed, expected, "sum")
        same(averaged, expected / SIZE, "average", "float32")
    with pytest.raises(ValueError, match="op is Max"):
        hvd.allreduce(tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0])), op=hvd.Max)


def test_slices_of_large_integers_are_scaled_exactly():
    """Beyond 2^53 a double has no odd numbers."""
    value = 2**60 + 1
    slices = tf.IndexedSlices(tf.constant([[value]], tf.int64), tf.constant([RANK]), tf.constant([SIZE, 1]))
    result = hvd.allreduce(slices, op=hvd.Sum, prescale_factor=3.0)
    assert result.values.numpy().tolist() == [[3 * value]] * SIZE


def test_grouped_allreduce():
    for dtype in (*FLOATS, *INTEGERS):
        for op in FOLDS:
            results = hvd.grouped_allreduce([value(RANK, dim, dtype) for dim in DIMS], op=getattr(hvd, op))
            for dim, result in zip(DIMS, results, strict=True):
                same(result, reduced(dim, dtype, op), (dtype, dim, op), dtype)


def test_grouped_allreduce_with_slices_and_gradient():
    for wrap in MODES.values():
        for dtype in FLOATS:

            @wrap
            def reduce(dtype=dtype):
                xs = [value(RANK, dim, dtype) for dim in DIMS]
                slices = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([RANK]), tf.constant([SIZE, 2]))
                with tf.GradientTape() as tape:
                    tape.watch(xs)
                    ys = hvd.grouped_allreduce([*xs, slices], op=hvd.Sum)
                return ys[:3], tape.gradient(ys[:3], xs), tf.convert_to_tensor(ys[3])

            ys, grads, dense = reduce()
            for dim, y, grad in zip(DIMS, ys, grads, strict=True):
                same(y, reduced(dim, dtype, "Sum"), (dtype, dim), dtype)
                same(grad, np.full(y.shape, float(SIZE)), (dtype, dim))
            same(dense, np.ones((SIZE, 2)), "slices")


def test_reducescatter():
    for dtype, dim in cases():
        for op in ("Sum", "Average"):
            result = hvd.reducescatter(value(RANK, dim, dtype), op=getattr(hvd, op))
            same(result, reduced(dim, dtype, op)[rows_of(RANK, SIZE + 1)], (dtype, dim, op), dtype)


def test_reducescatter_gradient():
    lengths = [len(range(SIZE + 1)[rows_of(rank, SIZE + 1)]) for rank in RANKS]
    weights = np.repeat([rank + 1.0 for rank in RANKS], lengths)
    for op, factor in (("Sum", SIZE), ("Average", 1)):
        for dtype, dim, graph in gradient_cases():
            x = value(RANK, dim, dtype)
            grad = gradient_of(lambda x, o=op: hvd.reducescatter(x, op=getattr(hvd, o)), x, graph)
            same(grad, factor * spread(weights, x), (op, dtype, dim, graph), dtype)


def test_grouped_reducescatter():
    weights = np.repeat([rank + 1.0 for rank in RANKS], 2)
    for dtype in FLOATS:
        for op, factor in (("Sum", SIZE), ("Average", 1)):
            xs = [value(RANK, dim, dtype, 2 * SIZE) for dim in DIMS]
            with tf.GradientTape() as tape:
                tape.watch(xs)
                ys = hvd.grouped_reducescatter(xs, op=getattr(hvd, op))
                loss = [y * tf.cast(RANK + 1, y.dtype) for y in ys]
            for dim, x, y, grad in zip(DIMS, xs, ys, tape.gradient(loss, xs), strict=True):
                expected = reduced(dim, dtype, op, 2 * SIZE)[rows_of(RANK, 2 * SIZE)]
                same(y, expected, (dtype, dim, op), dtype)
                same(grad, factor * spread(weights, x), (dtype, dim, op), dtype)
