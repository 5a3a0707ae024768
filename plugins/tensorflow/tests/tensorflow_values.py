"""Tensors of known values, their numpy counterparts, and what checks of ringtrain.tensorflow assert about them."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

import ringtrain.tensorflow as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
RANKS = range(SIZE)
FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["uint8", "int8", "int32", "int64"]
DIMS = [1, 2, 3]
FOLDS = {"Sum": np.sum, "Min": np.min, "Max": np.max, "Product": np.prod, "Average": np.mean}
MODES = {"eager": lambda function: function, "graph": tf.function}
ROUNDING = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6}


def numbers(rank: int, dim: int, rows: int | None = None) -> np.ndarray:
    """Small integers that differ by rank: sums and products of four of them are exact in every dtype."""
    shape = (rows if rows is not None else SIZE + 1,) + (3,) * (dim - 1)
    return ((np.arange(int(np.prod(shape))) + rank) % 3 + 1).reshape(shape).astype(float)


def value(rank: int, dim: int, dtype: str = "float32", rows: int | None = None) -> tf.Tensor:
    return tf.cast(tf.constant(numbers(rank, dim, rows)), dtype)


def same(tensor: tf.Tensor, expected: np.ndarray, case: object, dtype: str = "float64") -> None:
    rounding = ROUNDING.get(dtype, 1e-12)
    assert tuple(tensor.shape) == expected.shape, (case, tensor.shape, expected.shape)
    ours = np.asarray(tf.cast(tensor, tf.float64))
    np.testing.assert_allclose(ours, expected, rtol=rounding, err_msg=str(case))


def reduced(dim: int, dtype: str, op: str, rows: int | None = None) -> np.ndarray:
    folded = FOLDS[op](np.stack([numbers(rank, dim, rows) for rank in RANKS]), axis=0)
    return np.trunc(folded) if dtype in INTEGERS else folded


def rows_of(rank: int, rows: int) -> slice:
    lengths = [rows // SIZE + (index < rows % SIZE) for index in RANKS]
    return slice(sum(lengths[:rank]), sum(lengths[: rank + 1]))


def spread(by_row: np.ndarray, like: tf.Tensor) -> np.ndarray:
    """`by_row`, one number a row, in the shape of `like`."""
    return by_row.reshape((-1,) + (1,) * (len(like.shape) - 1)) * np.ones(tuple(like.shape))


def cases() -> list[tuple[str, int]]:
    """Return pairs (dtype, dimension): every dtype with matrices, and every dimension with float32."""
    return [(dtype, 2) for dtype in (*FLOATS, *INTEGERS)] + [("float32", dim) for dim in DIMS if dim != 2]


def gradient_cases() -> list[tuple[str, int, bool]]:
    """Return `cases` of floats, not in a graph (False), and one in a graph, which takes longer."""
    return [(dtype, dim, False) for dtype, dim in cases() if dtype in FLOATS] + [("float32", 2, True)]


def gradient_of(function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, graph: bool) -> tf.Tensor:
    """The gradient of `function` at `x`, where this rank's outputs all weigh rank + 1."""

    def gradient(given: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(given)
            y = function(given)
            loss = y * tf.cast(RANK + 1, y.dtype)
        return tape.gradient(loss, given)

    return tf.function(gradient)(x) if graph else gradient(x)
