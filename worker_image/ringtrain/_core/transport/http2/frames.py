"""Frames of HTTP/2 (RFC 9113) as bytes."""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES: Final = 9
MAX_WINDOW: Final = (1 << 31) - 1
DEFAULT_WINDOW: Final = (1 << 16) - 1
LEAST_FRAME: Final = 1 << 14  # what every peer takes
LARGEST_FRAME: Final = (1 << 24) - 1
MAX_STREAM: Final = (1 << 31) - 1

# Length (24 bits) and type (8 bits) in one word, flags, stream.
_HEADER: Final = struct.Struct(">IBI")
_SETTING: Final = struct.Struct(">HI")
_WORD: Final = struct.Struct(">I")
# A DATA frame's header, and what gRPC writes in front of the message in it: compressed or not, length.
_MESSAGE: Final = struct.Struct(">IBIBI")
PREFIX_BYTES: Final = 5


class FrameType(IntEnum):
    """Types of frames. Others than these are ignored, as the standard asks."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20


class Setting(IntEnum):
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Code(IntEnum):
    """Why a stream or a connection is given up."""

    PROTOCOL_ERROR = 1
    REFUSED_STREAM = 7


class FrameHead(NamedTuple):
    """What the first nine bytes of a frame say."""

    length: int
    kind: int
    flags: int
    stream: int


def head_of(data: bytes | bytearray | memoryview) -> FrameHead:
    """Read the first nine bytes."""
    word, flags, stream = _HEADER.unpack_from(data)
    return FrameHead(word >> 8, word & 0xFF, flags, stream & MAX_STREAM)


def frame_head(kind: int, flags: int, stream: int, length: int) -> bytes:
    return _HEADER.pack(length << 8 | kind, flags, stream)


def data_head(flags: int, stream: int, length: int) -> bytes:
    return _HEADER.pack(length << 8, flags, stream)  # DATA is 0


def message_front(flags: int, stream: int, head: bytes, payload_bytes: int) -> bytes:
    """What stands before the payload of a message that is a frame of its own. `head`: the message's beginning."""
    length = len(head) + payload_bytes
    return _MESSAGE.pack((PREFIX_BYTES + length) << 8, flags, stream, 0, length) + head


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return frame_head(kind, flags, stream, len(payload)) + payload


def settings(values: dict[Setting, int]) -> bytes:
    return frame(FrameType.SETTINGS, 0, 0, b"".join(_SETTING.pack(name, value) for name, value in values.items()))


def settings_of(payload: bytes) -> list[tuple[int, int]]:
    """Undo `settings`. `payload`: a multiple of six bytes."""
    return list(_SETTING.iter_unpack(payload))


def window_update(stream: int, more: int) -> bytes:
    return frame(FrameType.WINDOW_UPDATE, 0, stream, _WORD.pack(more))


def reset(stream: int, code: Code) -> bytes:
    return frame(FrameType.RST_STREAM, 0, stream, _WORD.pack(code))


def goaway(last_stream: int, code: Code, reason: str) -> bytes:
    return frame(FrameType.GOAWAY, 0, 0, _WORD.pack(last_stream) + _WORD.pack(code) + reason.encode()[:256])


def word_of(payload: bytes) -> int:
    """The 31 bits that a WINDOW_UPDATE or RST_STREAM holds."""
    return int(_WORD.unpack(payload)[0]) & MAX_STREAM
