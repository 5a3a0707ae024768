"""Messages between ranks: control messages, and the requests and frames of tensor data."""

import json
import struct
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np

from ringtrain._core.wire.dtypes import CODES
from ringtrain.shared.contract import RELEASE

PROTOCOL_VERSION: Final = 12
SESSION_BYTES: Final = 16

HELLO: Final = "Hello"
PROVE: Final = "Prove"
WATCH: Final = "Watch"
STATUS: Final = "Status"
ABORT: Final = "Abort"
MEANING: Final = "Meaning"
ROSTER: Final = "Roster"
METHODS: Final = (HELLO, PROVE, WATCH, STATUS, ABORT, MEANING, ROSTER)

# Longer than any request of a peer to the ring's port: a signature's text, or an announced failure.
MOST_CONTROL_BYTES: Final = 64 << 10
_MOST_TEXT: Final = 300  # host names have at most 253 characters
_PULL: Final = struct.Struct("<16sIIQ")


class MalformedMessage(ValueError):
    """Error: received bytes are not a message of this protocol. Ranks of the same version never send such bytes."""


@dataclass(frozen=True)
class HelloMessage:
    """First message between two ranks: the sender's identity, which the receiver compares with its own settings."""

    version: int
    rank: int
    size: int
    generation: int
    address: str
    instance: str
    nonce: str
    local_size: int = 1
    transport: str = "auto"  # the value of RINGTRAIN_TRANSPORT
    release: str = RELEASE  # version of the package

    @staticmethod
    def parse(value: object) -> "HelloMessage":
        """Return the HelloMessage in a decoded JSON value. Raises MalformedMessage for other values.

        A hello of another version may have other fields: only identity and version are read.
        """
        names = {field.name for field in fields(HelloMessage)}
        if isinstance(value, dict) and value.get("version") != PROTOCOL_VERSION:
            later = {"local_size": 1, "transport": "auto", "release": "unknown"}
            value = later | {name: value[name] for name in names & value.keys()}
        if not isinstance(value, dict) or set(value) != names:
            raise MalformedMessage("the message is not a hello of this protocol")
        for field in fields(HelloMessage):
            given = value[field.name]
            if type(given) is not field.type or (isinstance(given, str) and len(given) > _MOST_TEXT):
                raise MalformedMessage(
                    f"the message is not a hello of this protocol: {field.name} is {str(given)[:50]!r}"
                )
        return HelloMessage(**value)


@dataclass(frozen=True)
class PullRequestMessage:
    """Request by `rank` for all frames that the receiver has for it in one collective.

    `compared`: `WireSignature.compared` of this rank's collective.
    """

    session: bytes
    rank: int
    process_set: int
    sequence: int
    compared: bytes

    def encode(self) -> bytes:
        return _PULL.pack(self.session, self.rank, self.process_set, self.sequence) + self.compared

    @staticmethod
    def decode(data: bytes) -> "PullRequestMessage":
        session, rank, process_set, sequence = _PULL.unpack_from(data)
        return PullRequestMessage(session, rank, process_set, sequence, data[_PULL.size :])


def encode_wire_message(message: Any) -> bytes:
    """Encode a control message, a dataclass or plain values, as JSON."""
    value = asdict(message) if hasattr(message, "__dataclass_fields__") else message
    return json.dumps(value, sort_keys=True).encode()


def decode_message(data: bytes) -> Any:
    """Decode a control message from JSON to plain values.

    Raises MalformedMessage, because unauthenticated peers may send any bytes.
    """
    try:
        value = json.loads(data)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is not valid text, and has no proof
        return value
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"the message is not of this protocol: {str(error)[:100]}") from error


def decode_message_fields(data: bytes, **types: type) -> dict[str, Any]:
    """Return the fields named in `types`. Raises MalformedMessage if one is missing or has another type.

    A session is hexadecimal text on the wire, and is returned as bytes if its type is `bytes`.
    """
    message = decode_message(data)
    if not isinstance(message, dict):
        raise MalformedMessage("the message is not of this protocol: it is not a JSON object")
    found: dict[str, Any] = {}
    for name, wanted in types.items():
        value = message.get(name)
        if type(value) is not (str if wanted is bytes else wanted):
            raise MalformedMessage(f"the message is not of this protocol: {name} is missing or of another type")
        found[name] = _message_octets(name, value) if wanted is bytes else value
    return found


def _message_octets(name: str, text: Any) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise MalformedMessage(f"the message is not of this protocol: {name} is not hexadecimal text") from error


# 32 bytes, so that the payload after it is aligned for every dtype.
_HEADER: Final = struct.Struct("<HBBIQIIQ")
_MAGIC: Final = 0x5274
HEADER_BYTES: Final = _HEADER.size


class WireStep(IntEnum):
    """Part of a collective to which a frame belongs."""

    SIZES = 0  # number of elements, if it may differ between ranks
    CONTRIBUTION = 1  # reduce-scatter: a rank's contribution to a chunk that another rank owns
    RESULT = 2  # all-gather, broadcast, all-to-all: final values
    READY = 3  # broadcast: no data; the sender has joined, and so have all ranks that receive from it


class FrameHeader(NamedTuple):
    """Header of a frame: the collective and segment to which its payload of `length` bytes belongs."""

    generation: int
    sequence: int
    step: WireStep
    segment: int
    dtype: str
    length: int

    def encode(self) -> bytes:
        return encoded_header(*self)


def encoded_header(generation: int, sequence: int, step: WireStep, segment: int, dtype: str, length: int) -> bytes:
    """Return the bytes of a `FrameHeader` with these values."""
    return _HEADER.pack(_MAGIC, CODES[dtype], step, generation, sequence, segment, 0, length)


class WireFrame(NamedTuple):
    """One message of a tensor stream: header and payload, where the payload is a view of the sender's array."""

    head: bytes
    payload: memoryview

    def joined(self) -> bytes:
        """Return header and payload as one bytes object. Copies the payload."""
        return b"".join(self)

    def move_into(self, head: bytes, target: memoryview) -> str | None:
        """Copy the payload to `target` and return None if the header is `head`; otherwise describe the difference."""
        if self.head != head or len(self.payload) != len(target):
            return describe_difference(head, len(target), self.head, len(self.payload))
        target[:] = self.payload
        return None


def split_frame(data: bytes) -> WireFrame:
    """Return the frame whose bytes are `data`; the inverse of `WireFrame.joined`. Does not copy the payload."""
    return WireFrame(data[:HEADER_BYTES], memoryview(data)[HEADER_BYTES:])


def payload_octets(array: np.ndarray[Any, Any]) -> memoryview:
    """Return the memory of a 1-d contiguous array as bytes. Supports bfloat16, which numpy's buffers do not."""
    return array.view(np.uint8).data


def describe_difference(expected: bytes, expected_length: int, got: bytes, length: int) -> str:
    """Return a text that compares the expected frame with the received one, for an error."""
    head, other = _named_frame_head(expected), _named_frame_head(got)
    return f"expected {head} with {expected_length} bytes of payload, got {other} with {length}"


def _named_frame_head(head: bytes) -> str:
    """Return a text that describes the frame header in `head`; hexadecimal digits if `head` is not a frame header."""
    names = {code: name for name, code in CODES.items()}
    try:
        magic, dtype, step, generation, sequence, segment, _, length = _HEADER.unpack(head)
        if magic == _MAGIC:
            return str(FrameHeader(generation, sequence, WireStep(step), segment, names[dtype], length))
    except (struct.error, ValueError, KeyError):
        pass
    return f"a frame that begins with {head.hex() or 'nothing'}"
