"""Encoding of HTTP/2 frames (RFC 9113) and of the header blocks of gRPC calls (grpc's PROTOCOL-HTTP2)."""

import functools
import re
import struct
import urllib.parse
from enum import IntEnum
from typing import Final, NamedTuple

from hpack import Decoder, Encoder, NeverIndexedHeaderTuple
from hpack.exceptions import HPACKError

from ringtrain._core.transport.base import TransportStatus
from ringtrain.shared.connection_errors import ProtocolError

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES: Final = 9
MAX_WINDOW: Final = (1 << 31) - 1
DEFAULT_WINDOW: Final = (1 << 16) - 1
LEAST_FRAME: Final = 1 << 14  # supported by every peer
LARGEST_FRAME: Final = (1 << 24) - 1
MAX_STREAM: Final = (1 << 31) - 1

# Length (24 bits) and type (8 bits) in one word, flags, stream.
_HEADER: Final = struct.Struct(">IBI")
_SETTING: Final = struct.Struct(">HI")
_WORD: Final = struct.Struct(">I")
# A DATA frame's header, and gRPC's prefix of the message in it: compressed or not, length.
_MESSAGE: Final = struct.Struct(">IBIBI")
PREFIX_BYTES: Final = 5


class Http2FrameType(IntEnum):
    """HTTP/2 frame types that are understood. Others are ignored, as the standard requires."""

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


class Http2Setting(IntEnum):
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Http2ErrorCode(IntEnum):
    """HTTP/2 error codes that are sent in a reset or GOAWAY frame."""

    PROTOCOL_ERROR = 1
    REFUSED_STREAM = 7


class Http2FrameHead(NamedTuple):
    """Decoded header of an HTTP/2 frame, which has nine bytes."""

    length: int
    kind: int
    flags: int
    stream: int


def http2_head_of(data: bytes | bytearray | memoryview) -> Http2FrameHead:
    """Decode an HTTP/2 frame header from the first nine bytes of `data`."""
    word, flags, stream = _HEADER.unpack_from(data)
    return Http2FrameHead(word >> 8, word & 0xFF, flags, stream & MAX_STREAM)


def frame_head(kind: int, flags: int, stream: int, length: int) -> bytes:
    return _HEADER.pack(length << 8 | kind, flags, stream)


def data_head(flags: int, stream: int, length: int) -> bytes:
    return _HEADER.pack(length << 8, flags, stream)  # DATA is 0


def message_front(flags: int, stream: int, head: bytes, payload_bytes: int) -> bytes:
    """Return the bytes that precede the payload of a gRPC message in one DATA frame, including `head`.

    `flags`, `stream`: fields of the frame's header.
    """
    length = len(head) + payload_bytes
    return _MESSAGE.pack((PREFIX_BYTES + length) << 8, flags, stream, 0, length) + head


def http2_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return frame_head(kind, flags, stream, len(payload)) + payload


def http2_settings(values: dict[Http2Setting, int]) -> bytes:
    return http2_frame(
        Http2FrameType.SETTINGS, 0, 0, b"".join(_SETTING.pack(name, value) for name, value in values.items())
    )


def http2_settings_of(payload: bytes) -> list[tuple[int, int]]:
    """Decode the payload of a SETTINGS frame to (name, value) pairs. Its length is a multiple of six."""
    return list(_SETTING.iter_unpack(payload))


def window_update(stream: int, more: int) -> bytes:
    return http2_frame(Http2FrameType.WINDOW_UPDATE, 0, stream, _WORD.pack(more))


def http2_reset(stream: int, code: Http2ErrorCode) -> bytes:
    return http2_frame(Http2FrameType.RST_STREAM, 0, stream, _WORD.pack(code))


def http2_goaway(last_stream: int, code: Http2ErrorCode, reason: str) -> bytes:
    return http2_frame(Http2FrameType.GOAWAY, 0, 0, _WORD.pack(last_stream) + _WORD.pack(code) + reason.encode()[:256])


def http2_word_of(payload: bytes) -> int:
    """Return the 31-bit number in the payload of a WINDOW_UPDATE or RST_STREAM frame."""
    return int(_WORD.unpack(payload)[0]) & MAX_STREAM


PULL_PATH: Final = "/ringtrain.Ring/Pull"
CONTENT_TYPE: Final = "application/grpc"
MAX_BLOCK_BYTES: Final = 16 << 10
# gRPC allows eight digits.
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_LARGEST_TIMEOUT_MS: Final = 99_999_999

Fields = dict[str, str]


@functools.lru_cache(maxsize=256)  # the same calls are needed in every step
def request_block(authority: str, timeout_s: float) -> bytes:
    """Return the encoded headers of a Pull request with this timeout."""
    milliseconds = min(max(int(timeout_s * 1000), 1), _LARGEST_TIMEOUT_MS)
    return _encoded_http2_fields(
        (":method", "POST"),
        (":scheme", "http"),
        (":path", PULL_PATH),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", CONTENT_TYPE),
        ("grpc-timeout", f"{milliseconds}m"),
    )


@functools.cache
def response_block() -> bytes:
    """Return the encoded headers that a response begins with."""
    return _encoded_http2_fields((":status", "200"), ("content-type", CONTENT_TYPE))


def trailer_block(status: int, message: str, only: bool) -> bytes:
    """Return the encoded trailers that end a call. `only`: whether no headers were sent, so that the trailers include
    them."""
    return (
        _ok_block(only)
        if status == TransportStatus.OK
        else _encoded_http2_fields(*_http2_trailer(status, message, only))
    )


@functools.cache
def _ok_block(only: bool) -> bytes:
    return _encoded_http2_fields(*_http2_trailer(TransportStatus.OK, "", only))


def _http2_trailer(status: int, message: str, only: bool) -> list[tuple[str, str]]:
    front = [(":status", "200"), ("content-type", CONTENT_TYPE)] if only else []
    text = [("grpc-message", urllib.parse.quote(message, safe=_UNQUOTED))] if message else []
    return [*front, ("grpc-status", str(status)), *text]


# All printable characters except the percent sign.
_UNQUOTED: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def grpc_message_of(fields: Fields) -> str:
    return urllib.parse.unquote(fields.get("grpc-message", ""))


def timeout_of(fields: Fields) -> float | None:
    """Return the timeout in seconds from a call's headers; None if they set none. Raises ValueError for an invalid
    timeout."""
    text = fields.get("grpc-timeout")
    if text is None:
        return None
    found = _TIMEOUT.fullmatch(text)
    if found is None:
        raise ValueError(f'grpc-timeout is "{text[:32]}"; expected up to eight digits and a unit')
    return int(found[1]) * _SECONDS[found[2]]


def _encoded_http2_fields(*fields: tuple[str, str]) -> bytes:
    """Encode headers without HPACK's dynamic table, so that the block is valid on any connection."""
    return Encoder().encode([NeverIndexedHeaderTuple(name, value) for name, value in fields], huffman=False)


class Http2BlockReader:
    """Decoder of the header blocks that arrive on one connection."""

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=MAX_BLOCK_BYTES)
        # Ringtrain's peers repeat the same blocks, which do not use the table: decoding one takes 20 us.
        self._known: dict[bytes, Fields] = {}

    def read(self, block: bytes) -> Fields:
        """Decode the next header block; of a repeated field, the last value counts. Raises ProtocolError for an invalid
        block."""
        fields = self._known.get(block)
        if fields is not None and not self._decoder.header_table.dynamic_entries:
            return fields
        try:
            fields = {_header_text(name): _header_text(value) for name, value in self._decoder.decode(block, raw=True)}
        except HPACKError as error:
            raise ProtocolError(f"the peer sent a header block that can't be decoded: {error}") from error
        if not self._decoder.header_table.dynamic_entries and len(self._known) < 64:
            self._known[block] = fields
        return fields


def _header_text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
