"""Header blocks of gRPC calls, and what their fields mean (grpc's PROTOCOL-HTTP2)."""

import functools
import re
import urllib.parse
from typing import Final

from hpack import Decoder, Encoder, NeverIndexedHeaderTuple
from hpack.exceptions import HPACKError

from ringtrain._core.transport.outcome import Status
from ringtrain.shared.connection_errors import ProtocolError

PULL_PATH: Final = "/ringtrain.Ring/Pull"
CONTENT_TYPE: Final = "application/grpc"
MAX_BLOCK_BYTES: Final = 16 << 10
# gRPC allows eight digits.
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_LARGEST_TIMEOUT_MS: Final = 99_999_999

Fields = dict[str, str]


@functools.lru_cache(maxsize=256)  # a training step repeats the same calls
def request_block(authority: str, timeout_s: float) -> bytes:
    """The headers of a Pull that may take `timeout_s`."""
    milliseconds = min(max(int(timeout_s * 1000), 1), _LARGEST_TIMEOUT_MS)
    return _encoded(
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
    """The headers in front of the first message."""
    return _encoded((":status", "200"), ("content-type", CONTENT_TYPE))


def trailer_block(status: int, message: str, only: bool) -> bytes:
    """What ends a call. `only`: nothing went before."""
    return _ok_block(only) if status == Status.OK else _encoded(*_trailer(status, message, only))


@functools.cache
def _ok_block(only: bool) -> bytes:
    return _encoded(*_trailer(Status.OK, "", only))


def _trailer(status: int, message: str, only: bool) -> list[tuple[str, str]]:
    front = [(":status", "200"), ("content-type", CONTENT_TYPE)] if only else []
    text = [("grpc-message", urllib.parse.quote(message, safe=_UNQUOTED))] if message else []
    return [*front, ("grpc-status", str(status)), *text]


# Everything printable but the percent sign.
_UNQUOTED: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def message_of(fields: Fields) -> str:
    return urllib.parse.unquote(fields.get("grpc-message", ""))


def timeout_of(fields: Fields) -> float | None:
    """Seconds that the caller waits, None if it does not say. Raises ValueError."""
    text = fields.get("grpc-timeout")
    if text is None:
        return None
    found = _TIMEOUT.fullmatch(text)
    if found is None:
        raise ValueError(f'grpc-timeout is "{text[:32]}"; expected up to eight digits and a unit')
    return int(found[1]) * _SECONDS[found[2]]


def _encoded(*fields: tuple[str, str]) -> bytes:
    """A block that leaves the compressor's table alone: it means the same at any time, on any connection."""
    return Encoder().encode([NeverIndexedHeaderTuple(name, value) for name, value in fields], huffman=False)


class BlockReader:
    """Decodes the header blocks of one connection."""

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=MAX_BLOCK_BYTES)
        # Peers of ours repeat the same blocks, which do not use the table: decoding one takes 20 us.
        self._known: dict[bytes, Fields] = {}

    def read(self, block: bytes) -> Fields:
        """Return the fields of the next block; of a field that comes twice, the last. Raises ProtocolError."""
        fields = self._known.get(block)
        if fields is not None and not self._decoder.header_table.dynamic_entries:
            return fields
        try:
            fields = {_text(name): _text(value) for name, value in self._decoder.decode(block, raw=True)}
        except HPACKError as error:
            raise ProtocolError(f"a header block that can't be read: {error}") from error
        if not self._decoder.header_table.dynamic_entries and len(self._known) < 64:
            self._known[block] = fields
        return fields


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
