"""A frame: a fixed header and the raw bytes of one segment."""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np

from ringtrain.errors import RingtrainError
from ringtrain.wire.dtypes import CODES, dtype_of

# 32 bytes: the payload behind it stays aligned for every dtype.
_HEADER: Final = struct.Struct("<HBBIQIIQ")
_MAGIC: Final = 0x5274
HEADER_BYTES: Final = _HEADER.size


class Step(IntEnum):
    """Which part of a collective a frame belongs to."""

    SIZES = 0  # how many elements follow, where that may differ between ranks
    CONTRIBUTION = 1  # reduce-scatter: what a rank adds to a chunk that another rank owns
    RESULT = 2  # all-gather, broadcast, all-to-all: final values
    DONE = 3  # nothing but the fact: the sender has everything


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Where a payload of `length` bytes belongs."""

    generation: int
    sequence: int
    step: Step
    segment: int
    dtype: str
    length: int

    def encode(self) -> bytes:
        return _HEADER.pack(
            _MAGIC, CODES[self.dtype], self.step, self.generation, self.sequence, self.segment, 0, self.length
        )


def encode_frame(header: FrameHeader, payload: np.ndarray[Any, Any]) -> bytes:
    """Return header and payload as one bytes object, copying the payload once."""
    # A view as bytes: the buffer protocol has no name for bfloat16.
    return b"".join((header.encode(), payload.view(np.uint8).data))


def decode_frame(frame: bytes, expected: FrameHeader) -> np.ndarray[Any, Any]:
    """Return the payload of `frame` as a read-only 1-d array that shares its memory.

    Raises RingtrainError if the frame is not the one `expected`: that is a defect, never a user's mistake, because
    signatures were compared before the first frame.
    """
    if frame[:HEADER_BYTES] != expected.encode() or len(frame) != HEADER_BYTES + expected.length:
        raise RingtrainError(
            f"expected {expected}, got a frame of {len(frame)} bytes that begins with {frame[:HEADER_BYTES].hex()}"
        )
    return np.frombuffer(frame, dtype=dtype_of(expected.dtype), offset=HEADER_BYTES)
