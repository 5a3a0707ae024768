"""Conversion of arrays to the flat buffers that communicators exchange, and back."""

import functools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringtrain._core.reduction.cuts import Bounds
from ringtrain._core.reduction.fold import Flat
from ringtrain._core.reduction.ops import ReduceOp, check_op
from ringtrain._core.wire.dtypes import dtype_name
from ringtrain._core.wire.signature import ANY_ROWS, WireSignature, WireTensorSignature
from ringtrain.errors import ConfigurationError

Array = NDArray[Any]

# Native byte order only: a dtype in another order compares unequal.
_USUAL: Final = frozenset(np.dtype(kind) for kind in ("f4", "f8", "f2", "i4", "i8", "u1", "?"))


def as_array(x: ArrayLike) -> Array:
    """Return `x` as a contiguous array in native byte order; copies only if necessary."""
    if type(x) is np.ndarray and x.dtype in _USUAL and x.flags.c_contiguous and x.flags.aligned:
        return x  # fast path: a model has hundreds of gradients
    _check_no_mask(x)
    array = np.asarray(x)
    dtype_name(array.dtype)  # raises for an unsupported type
    # Aligned, because compiled code reads whole numbers.
    return np.require(array, array.dtype.newbyteorder("="), ["C", "A"]).reshape(array.shape)


def as_rows(x: ArrayLike) -> Array:
    """Return `x` as `as_array` does, but a scalar as an array with one row."""
    array = as_array(x)
    return array.reshape(1) if array.ndim == 0 else array


def flat_collective_array(array: Array) -> Flat:
    """Return the contiguous `array` as a 1-d view."""
    return array.reshape(-1)


def collective_array_to_bytes(array: Array) -> NDArray[np.uint8]:
    """Return the bytes of the contiguous `array` as a 1-d view."""
    return flat_collective_array(array).view(np.uint8)


def tensor_of(array: Array, name: str | None) -> WireTensorSignature:
    return _tensor(name, dtype_name(array.dtype), array.shape)


@functools.lru_cache(maxsize=4096)  # the same ones are needed in every step; making one takes 1 us
def _tensor(name: str | None, dtype: str, shape: tuple[int, ...]) -> WireTensorSignature:
    return WireTensorSignature(name, dtype, shape)


def rows_of(array: Array, name: str | None) -> WireTensorSignature:
    """Return the signature of `array` for a collective in which ranks may pass different numbers of rows."""
    return WireTensorSignature(name, dtype_name(array.dtype), (ANY_ROWS, *array.shape[1:]))


def check_writable(x: object, function: str) -> Array:
    """Return `x` if it is an array that a collective can overwrite. Raises ConfigurationError if it is not."""
    if not isinstance(x, np.ndarray):
        raise ConfigurationError(f"{function} changes its argument and needs a numpy array; got {type(x).__name__}")
    _check_no_mask(x)
    if not x.flags.writeable:
        raise ConfigurationError(f"{function} changes its argument, but this array is read-only; pass a copy")
    dtype_name(x.dtype)
    return x


def _check_no_mask(x: object) -> None:
    """Raise ConfigurationError for a masked array, because masked values would be reduced like all others."""
    if isinstance(x, np.ma.MaskedArray):
        raise ConfigurationError(
            "masked arrays are not supported, because masks are not sent; call filled() of the array"
        )


def flat_signature(kind: str, buffer: Any, name: str | None, op: ReduceOp | None) -> WireSignature:
    """Return the signature of a collective on the 1-d `buffer`. Raises ConfigurationError for an unsuitable buffer."""
    array = check_writable(buffer, kind)
    if array.ndim != 1 or not array.flags.c_contiguous or not array.flags.aligned or not array.dtype.isnative:
        raise ConfigurationError(
            f"{kind} needs a 1-d contiguous array in native byte order, aligned; "
            f"got shape {array.shape}, strides {array.strides}, dtype {array.dtype.str}"
        )
    if op is not None:
        check_op(op, dtype_name(array.dtype))
    return WireSignature(kind, (tensor_of(array, name),), op.value if op is not None else None)


def checked_collective_bounds(bounds: Sequence[int], buffer: Flat, size: int) -> Bounds:
    """Return `bounds` as integers. Raises ConfigurationError unless they divide `buffer` into `size` chunks."""
    cuts = tuple(int(bound) for bound in bounds)
    if len(cuts) != size + 1 or cuts[0] != 0 or cuts[-1] != len(buffer) or list(cuts) != sorted(cuts):
        raise ConfigurationError(
            f"bounds are {list(cuts)}; expected {size + 1} offsets from 0 to {len(buffer)} that never decrease"
        )
    return cuts
