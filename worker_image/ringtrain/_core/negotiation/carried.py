"""What travels in the place of numbers that no communicator reduces as they are, and the way back.

One rule in every framework: a sum has its dtype's own arithmetic (integers wrap, as numpy's and torch's do), and
an average of integers is exact, rounded towards zero, whatever its sum would be. Complex numbers are reduced as
their real and imaginary parts, by Sum and Average.
"""

from typing import Any, Final

import numpy as np

from ringtrain._core.process_groups.tensors import Array
from ringtrain._core.reduction.ops import Average, ReduceOp, Sum
from ringtrain._core.wire.dtypes import CODES, dtype_of, name_of

# A type that the ring carries, and that holds sums of the narrow ones.
WIDER: Final = {
    "int8": "int32",
    "int16": "int32",
    "uint16": "int32",
    "uint32": "int64",
    "uint8": "int32",
    "bool": "int32",
}
# For averages, whose sums may pass the end of types that the ring carries.
_WIDER_FOR_AVERAGES: Final = {**WIDER, "int32": "int64"}

COMPLEX: Final = {"complex64": "float32", "complex128": "float64"}


def carried_op(dtype: np.dtype[Any], op: ReduceOp) -> ReduceOp:
    """The operation that a communicator is asked for: averages of integers are sums, divided afterwards."""
    return Sum if op is Average and dtype.kind in "iub" else op


def travels_as_it_is(dtype: np.dtype[Any], op: ReduceOp) -> bool:
    """Whether `carried_array` and `brought_back` change nothing."""
    return name_of(dtype) in CODES and not (op is Average and dtype.kind in "iub")


def carried_array(array: Array, op: ReduceOp, size: int) -> Array:
    """Return what `size` ranks reduce in the place of `array`; it may have one more dimension, the last."""
    name = name_of(array.dtype)
    if name in COMPLEX:
        return np.asarray(array, order="C")[..., None].view(COMPLEX[name])
    if op is Average and name == "int64":  # no wider type: quotients and remainders do not pass its end
        return np.stack([array // size, array % size], axis=-1)
    wider = _WIDER_FOR_AVERAGES if op is Average else {} if name in CODES else WIDER
    return array.astype(dtype_of(wider.get(name, name)), copy=False)


def brought_back(reduced: Array, op: ReduceOp, dtype: np.dtype[Any], size: int) -> Array:
    """Return the result of `dtype`, from what was reduced in its place."""
    if dtype.kind == "c":
        return np.asarray(np.asarray(reduced, order="C").view(dtype)[..., 0])
    if op is not Average or dtype.kind not in "iub":
        return reduced.astype(dtype, copy=False)
    if name_of(dtype) == "int64":
        quotient, remainder = reduced[..., 0], reduced[..., 1]
        whole, rest = quotient + remainder // size, remainder % size
    else:
        whole, rest = reduced // size, reduced % size
    # Arithmetic makes a number of an array without dimensions.
    return np.asarray(whole + ((whole < 0) & (rest != 0))).astype(dtype, copy=False)
