"""From arrays of any shape and layout to the flat buffers that communicators take, and back."""

import functools
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringtrain.errors import ConfigurationError
from ringtrain.reduction.fold import Flat
from ringtrain.wire.dtypes import dtype_name
from ringtrain.wire.signature import ANY_ROWS, Tensor

Array = NDArray[Any]

# In native byte order: an array in another one has an unequal dtype.
_USUAL: Final = frozenset(np.dtype(kind) for kind in ("f4", "f8", "f2", "i4", "i8", "u1", "?"))


def as_array(x: ArrayLike) -> Array:
    """Return `x` as a contiguous array in native byte order, copying only if it is not one already."""
    if type(x) is np.ndarray and x.dtype in _USUAL and x.flags.c_contiguous and x.flags.aligned:
        return x  # a model's gradients are hundreds of these
    array = np.asarray(x)
    dtype_name(array.dtype)  # raises for a type that can't travel
    # Aligned, because compiled code reads numbers and not bytes.
    return np.require(array, array.dtype.newbyteorder("="), ["C", "A"]).reshape(array.shape)


def as_rows(x: ArrayLike) -> Array:
    """Like `as_array`, with at least one dimension: a scalar is one row."""
    array = as_array(x)
    return array.reshape(1) if array.ndim == 0 else array


def flat(array: Array) -> Flat:
    """Return contiguous `array` as a 1-d view."""
    return array.reshape(-1)


def to_bytes(array: Array) -> NDArray[np.uint8]:
    """Return contiguous `array` as a 1-d view of bytes."""
    return flat(array).view(np.uint8)


def tensor_of(array: Array, name: str | None) -> Tensor:
    return _tensor(name, dtype_name(array.dtype), array.shape)


@functools.lru_cache(maxsize=4096)  # they come back every step; making one takes 1 us
def _tensor(name: str | None, dtype: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor(name, dtype, shape)


def rows_of(array: Array, name: str | None) -> Tensor:
    """The tensor with a number of rows that may differ between ranks."""
    return Tensor(name, dtype_name(array.dtype), (ANY_ROWS, *array.shape[1:]))


def check_writable(x: object, function: str) -> Array:
    """Return `x` if a collective can change it in place. Raises ConfigurationError."""
    if not isinstance(x, np.ndarray):
        raise ConfigurationError(
            f"{function} changes its argument and needs a numpy array; got {type(x).__name__}"
        )
    if not x.flags.writeable:
        raise ConfigurationError(f"{function} changes its argument, and this array is read-only; pass a copy")
    dtype_name(x.dtype)
    return x
