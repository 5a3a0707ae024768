"""What the ring is asked for in the place of dtypes, and of averages of integers, that it does not carry."""

from typing import Any, Final

import numpy as np

from ringtrain.collectives.tensors import Array
from ringtrain.reduction.ops import Average, ReduceOp, Sum
from ringtrain.wire.dtypes import CODES

# A type that the ring carries, and that holds sums of the narrow ones.
_WIDER: Final = {
    "int8": "int32",
    "int16": "int32",
    "uint16": "int32",
    "uint32": "int64",
    "uint8": "int32",
    "bool": "int32",
}


def carried(array: Array, op: ReduceOp) -> tuple[ReduceOp, Array]:
    """Return the op and the array that the ring is asked for.

    Averages of integers are sums, divided afterwards.
    """
    integer = array.dtype.kind in "iub"
    own_op = Sum if op is Average and integer else op
    overflows = op is Average and array.dtype.name in ("uint8", "bool")
    if array.dtype.name in CODES and not overflows:
        return own_op, array
    return own_op, array.astype(_WIDER[array.dtype.name])


def narrowed(reduced: Array, op: ReduceOp, dtype: np.dtype[Any], size: int) -> Array:
    """Divide a sum of integers by `size`, rounding towards zero as a cast does; return to the caller's dtype."""
    if op is Average and dtype.kind in "iub":
        reduced = np.trunc(reduced / size)
    return reduced.astype(dtype, copy=False)
