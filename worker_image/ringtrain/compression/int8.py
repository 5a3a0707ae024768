"""Conversion of float32 arrays to int8 with a scale for each block of elements, and back."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Flat = NDArray[Any]
# An outlier costs only its own block precision; scales add 4 bytes per 512.
BLOCK: Final = 512
# Smaller scales are denormal and imprecise: a block's largest value could exceed 127 times the scale, which is no int8.
_LEAST_SCALE: Final = np.finfo(np.float32).tiny


def encode(values: Flat, lost: Flat) -> Flat:
    """Return `values + lost` as int8 levels and scales, in bytes, and store the rounding error in `lost`.

    A block with a non-finite value arrives as non-finite values, and its error is set to 0. A block without a value
    above 1e-36 arrives as zeros.
    """
    blocks = -(-len(values) // BLOCK)
    padded = np.zeros((blocks, BLOCK), np.float32)
    flat = padded.reshape(-1)[: len(values)]
    with np.errstate(over="ignore", invalid="ignore"):
        np.add(values, lost, out=flat)
        scales = np.abs(padded).max(axis=1, initial=0) / np.float32(127)
        scales[scales < _LEAST_SCALE] = 0
        divisors = np.where(scales > 0, scales, np.float32(1))
        levels = np.nan_to_num(np.rint(padded / divisors[:, None])).astype(np.int8)
        sent = levels * scales[:, None]
        np.subtract(flat, sent.reshape(-1)[: len(values)], out=lost)
        lost[~np.isfinite(lost)] = 0
    return np.concatenate([scales.view(np.uint8), levels.reshape(-1)[: len(values)].view(np.uint8)])


def int8_encoded_length(length: int) -> int:
    """Return the number of bytes to which `encode` converts `length` values."""
    return length + 4 * -(-length // BLOCK)


def decode_int8(message: Flat, length: int) -> Flat:
    """Return the `length` float32 values in a message that `encode` has returned."""
    blocks = -(-length // BLOCK)
    scales = message[: 4 * blocks].view(np.float32)
    levels = message[4 * blocks :].view(np.int8)
    with np.errstate(invalid="ignore"):
        return levels * np.repeat(scales, BLOCK)[:length]
