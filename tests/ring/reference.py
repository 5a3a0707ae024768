"""The direct computation that collectives are compared with, bit by bit."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import ringtrain as rt
from ringtrain._core.reduction.ops import UFUNCS

Array = NDArray[Any]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
DTYPES = [*FLOATS, "int32", "int64", "uint8", "bool"]
OPS = [rt.Sum, rt.Average, rt.Min, rt.Max, rt.Product]
SHAPES = {
    "scalar": (),
    "empty": (0,),
    "empty-rows": (3, 0),
    "one": (1,),
    "length-not-divisible": (13,),
    "matrix": (5, 7),
    "tensor": (2, 3, 4),
}


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def made(shape: tuple[int, ...], dtype: str, rank: int, seed: int = 0) -> Array:
    """Return the array of `rank`. Sums of its values round in every float type, so that the fold order shows."""
    random = np.random.default_rng([seed, rank, *shape])
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype in FLOATS:
        return np.asarray(random.normal(size=shape) * 3).astype(dtype_of(dtype))
    return random.integers(0, 100, shape).astype(dtype)


def folded(parts: list[Array], op: rt.ReduceOp) -> Array:
    """((g0 + g1) + g2) + ..., in float32 for half precision, rounded once."""
    dtype = parts[0].dtype
    wide = [part.astype(np.float32) for part in parts] if dtype.itemsize == 2 else parts
    total = wide[0]
    for part in wide[1:]:
        total = UFUNCS[op](total, part)
    if op is rt.Average:
        total = np.divide(total, len(parts), dtype=total.dtype)
    return np.asarray(total).astype(dtype)


def assert_same_bits(got: Array, expected: Array) -> None:
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes(), f"{got} is not {expected}"


def copied(weights: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays as they are now."""
    return {name: np.array(array) for name, array in weights.items()}


def bits(weights: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: np.asarray(array).tobytes() for name, array in weights.items()}


def exactly(weights: Mapping[str, Any]) -> dict[str, bytes]:
    """The bits of float64 values that float32 has, too."""
    narrow = {name: array.astype(np.float32) for name, array in weights.items()}
    for name, array in weights.items():
        assert (narrow[name] == array).all(), "the reference is rounded: take fewer steps"
    return bits(narrow)
