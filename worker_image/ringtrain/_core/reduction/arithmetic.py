"""Scale factors and Adasum: the arithmetic of reductions that is not a plain fold."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def scaled(array: Array, factor: float) -> Array:
    """Return `array * factor` in the dtype of `array`, computed in that dtype if it is float32, float64 or complex.

    Half types are computed in float32, 64-bit integers in extended precision, others in float64.
    """
    if factor == 1.0:
        return array
    if array.dtype in (np.float32, np.float64) or array.dtype.kind == "c":
        return np.asarray(np.multiply(array, array.dtype.type(factor)))
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        wide: Any = np.longdouble
    else:
        wide = np.float32 if array.dtype.name in ("float16", "bfloat16") else np.float64
    return np.asarray(np.multiply(array.astype(wide), factor), array.dtype)


def adasum_error(size: int) -> str:
    """Return why Adasum cannot combine `size` ranks; empty if `size` is a power of two."""
    if size & (size - 1):
        return f"Adasum combines ranks in pairs, and the process set has {size}; expected a power of two"
    return ""


def adasum(arrays: Sequence[Array]) -> Array:
    """Return the Adasum of gradients: combined pairwise, orthogonal ones are added and parallel ones averaged.

    `arrays`: one per rank, a power of two of them. Norms and products are computed in float64. Maleki, Musuvathi et al.
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
