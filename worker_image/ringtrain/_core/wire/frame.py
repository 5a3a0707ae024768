"""A frame: a fixed header and the raw bytes of one segment."""

import struct
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np

from ringtrain._core.wire.dtypes import CODES

# 32 bytes: the payload behind it stays aligned for every dtype.
_HEADER: Final = struct.Struct("<HBBIQIIQ")
_MAGIC: Final = 0x5274
HEADER_BYTES: Final = _HEADER.size


class Step(IntEnum):
    """Which part of a collective a frame belongs to."""

    SIZES = 0  # how many elements follow, where that may differ between ranks
    CONTRIBUTION = 1  # reduce-scatter: what a rank adds to a chunk that another rank owns
    RESULT = 2  # all-gather, broadcast, all-to-all: final values
    READY = 3  # broadcast: nothing but the fact that the sender has come, and all that get it from the sender


class FrameHeader(NamedTuple):
    """Where a payload of `length` bytes belongs."""

    generation: int
    sequence: int
    step: Step
    segment: int
    dtype: str
    length: int

    def encode(self) -> bytes:
        return encoded_header(*self)


def encoded_header(generation: int, sequence: int, step: Step, segment: int, dtype: str, length: int) -> bytes:
    """What `FrameHeader` says, as bytes."""
    return _HEADER.pack(_MAGIC, CODES[dtype], step, generation, sequence, segment, 0, length)


class Frame(NamedTuple):
    """A header and its payload, which stays where it is."""

    head: bytes
    payload: memoryview

    def joined(self) -> bytes:
        """One bytes object, for what takes nothing else. Copies the payload."""
        return b"".join(self)

    def move_into(self, head: bytes, target: memoryview) -> str | None:
        """Copy the payload to `target` if this is the frame of `head`; say what is wrong otherwise."""
        if self.head != head or len(self.payload) != len(target):
            return describe_difference(head, len(target), self.head, len(self.payload))
        target[:] = self.payload
        return None


def split_frame(data: bytes) -> Frame:
    """Undo `Frame.joined`, without a copy of the payload."""
    return Frame(data[:HEADER_BYTES], memoryview(data)[HEADER_BYTES:])


def octets(array: np.ndarray[Any, Any]) -> memoryview:
    """The memory of a 1-d contiguous array as bytes: the buffer protocol has no name for bfloat16."""
    return array.view(np.uint8).data


def describe_difference(expected: bytes, expected_length: int, got: bytes, length: int) -> str:
    """Say which frame came in place of which."""
    return f"expected {_named(expected)} with {expected_length} bytes of payload, got {_named(got)} with {length}"


def _named(head: bytes) -> str:
    """`head` in words if it is a frame's header, else in hexadecimal digits."""
    names = {code: name for name, code in CODES.items()}
    try:
        magic, dtype, step, generation, sequence, segment, _, length = _HEADER.unpack(head)
        if magic == _MAGIC:
            return str(FrameHeader(generation, sequence, Step(step), segment, names[dtype], length))
    except (struct.error, ValueError, KeyError):
        pass
    return f"a frame that begins with {head.hex() or 'nothing'}"
