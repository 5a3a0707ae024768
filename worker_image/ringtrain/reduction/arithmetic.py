"""Arithmetic on arrays of all ranks: reductions, scale factors, Adasum."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from ringtrain.negotiation.group import Array

_FOLD: dict[str, Any] = {
    "Sum": np.add,
    "Average": np.add,
    "Min": np.minimum,
    "Max": np.maximum,
    "Product": np.multiply,
}


def reduce_arrays(arrays: Sequence[Array], op: str) -> Array:
    """Return the arrays folded in rank order; halves in float32. An average of integers is rounded towards
    zero.
    """
    dtype = arrays[0].dtype
    wide = [array.astype(np.float32) if dtype.name in ("float16", "bfloat16") else array for array in arrays]
    folded = np.asarray(reduce(_FOLD[op], wide))
    if op == "Average":
        divided = folded / len(arrays)
        folded = np.trunc(divided) if dtype.kind in "iu" else divided
    return folded.astype(dtype)


def scaled(array: Array, factor: float) -> Array:
    """Return `array * factor` in its own dtype, computed in double precision (float32 for halves)."""
    if factor == 1.0:
        return array
    if array.dtype in (np.float32, np.float64):
        return np.asarray(np.multiply(array, array.dtype.type(factor)))
    wide: Any = np.float32 if array.dtype.name in ("float16", "bfloat16") else np.float64
    return np.asarray(np.multiply(array.astype(wide), factor), array.dtype)


def adasum(arrays: Sequence[Array]) -> Array:
    """Combine gradients pairwise so that orthogonal ones add and parallel ones average.

    `arrays`: one a rank, a power of two of them. Norms and products are taken in float64. Maleki, Musuvathi et al.
    2021, "Scaling distributed training with adaptive summation", equation 3 and section 3.4.
    """
    level = [array.astype(np.float64) for array in arrays]
    while len(level) > 1:
        level = [_adasum_pair(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    return level[0].astype(arrays[0].dtype)


def _adasum_pair(a: Array, b: Array) -> Array:
    dot = float(np.vdot(a, b))
    norm_a, norm_b = float(np.vdot(a, a)), float(np.vdot(b, b))
    keep_a = 1.0 - dot / (2.0 * norm_a) if norm_a else 1.0
    keep_b = 1.0 - dot / (2.0 * norm_b) if norm_b else 1.0
    return np.asarray(keep_a * a + keep_b * b)
