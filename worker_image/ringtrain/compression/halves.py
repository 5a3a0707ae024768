"""Conversion of float32 arrays to bfloat16 or float16 and back, with the rounding error."""

import ctypes
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.kernels.library import native_library
from ringtrain._core.wire.dtypes import CODES, dtype_of
from ringtrain.errors import ConfigurationError

Flat = NDArray[Any]
# Names in the public API.
HALVES: Final = {"bf16": "bfloat16", "fp16": "float16"}


def half_dtype(compression: str) -> np.dtype[Any]:
    """Return the dtype in which `compression` ("bf16" or "fp16") sends float32. Raises ConfigurationError for any other
    value."""
    if compression not in HALVES:
        raise ConfigurationError(f'compression is "{compression}"; expected one of {", ".join(HALVES)}')
    return dtype_of(HALVES[compression])


def squeeze(values: Flat, lost: Flat, half: Flat) -> None:
    """Round `values + lost` to `half`, and store the rounding error in `lost`. All arrays are 1-d and contiguous.

    An element that overflows the half type is sent as infinity, and its error is set to 0.
    """
    library = native_library()
    if library is not None:
        library.ringtrain_squeeze(
            *_half_cast_arguments(half), _half_pointer(values), _half_pointer(lost), ctypes.c_size_t(values.size)
        )
        return
    with np.errstate(over="ignore", invalid="ignore"):
        np.add(values, lost, out=lost)
        half[...] = lost
        np.subtract(lost, half.astype(np.float32), out=lost)
        lost[~np.isfinite(lost)] = 0


def stretch_half(half: Flat, values: Flat) -> None:
    """Widen `half` into `values`; exact."""
    library = native_library()
    if library is None:
        values[...] = half
        return
    code, pointer = _half_cast_arguments(half)
    library.ringtrain_widen(code, _half_pointer(values), pointer, ctypes.c_size_t(values.size))


def _half_cast_arguments(half: Flat) -> tuple[int, ctypes.c_void_p]:
    return CODES[half.dtype.name], _half_pointer(half)


def _half_pointer(values: Flat) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data)
