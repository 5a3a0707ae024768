"""Element types that ranks can exchange, and their names on the wire."""

import functools
from typing import Any, Final

import numpy as np

from ringtrain.errors import ConfigurationError

CODES: Final = {
    "float16": 1,
    "bfloat16": 2,
    "float32": 3,
    "float64": 4,
    "int32": 5,
    "int64": 6,
    "uint8": 7,
    "bool": 8,
}
_OF_A_PACKAGE: Final = 2  # numpy's `isbuiltin` of a dtype that a package has added
HALVES: Final = ("float16", "bfloat16")
INTEGERS: Final = ("int32", "int64", "uint8", "bool")


def can_travel(name: str) -> bool:
    """Return whether ranks can exchange arrays of the dtype called `name`."""
    return name in CODES


@functools.cache  # numpy builds a dtype's name on each access, in 2 us
def name_of(dtype: np.dtype[Any]) -> str:
    """Return numpy's name of any dtype."""
    return dtype.name


@functools.cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of `dtype` in messages between ranks.

    Raises ConfigurationError for an unsupported type.
    """
    if dtype.name in CODES:
        return dtype.name
    raise ConfigurationError(f"dtype {dtype.name} can't be exchanged; expected one of {', '.join(CODES)}")


@functools.cache
def is_made_of_its_name(dtype: np.dtype[Any]) -> bool:
    """Return whether a receiver can reconstruct the dtype from its name, as for numpy's own dtypes and bfloat16.

    The other dtypes of `ml_dtypes` have names that numpy does not know, although float8_e5m2 has a float's kind.
    """
    return dtype.name == "bfloat16" or (dtype.isbuiltin != _OF_A_PACKAGE and dtype.kind not in "OV")


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the numpy dtype for a name in `CODES`, including bfloat16."""
    if name == "bfloat16":
        import ml_dtypes  # on first use: not every job has half precision, and import time counts

        dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return dtype
    return np.dtype(name)
