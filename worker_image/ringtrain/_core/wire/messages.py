"""Requests and answers of the control methods, and the request that opens a stream of frames."""

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

# More than any request of a peer to the ring's port has: a signature's text, or an announced failure.
MOST_CONTROL_BYTES: Final = 64 << 10
_MOST_TEXT: Final = 300  # host names have at most 253 characters
_PULL: Final = struct.Struct("<16sIIQ")


class MalformedMessage(ValueError):
    """Bytes that are no message of this protocol: never from a peer of this version."""


@dataclass(frozen=True)
class HelloMessage:
    """Who speaks: compared field by field with who listens before anything else is exchanged."""

    version: int
    rank: int
    size: int
    generation: int
    address: str
    instance: str
    nonce: str
    local_size: int = 1
    transport: str = "auto"  # as RINGTRAIN_TRANSPORT has it
    release: str = RELEASE  # of the package

    @staticmethod
    def parse(value: object) -> "HelloMessage":
        """Return the hello that a decoded message describes. Raises MalformedMessage for anything else.

        A hello of another version may have other fields: what tells whose it is, and of which version, is read.
        """
        names = {field.name for field in fields(HelloMessage)}
        if isinstance(value, dict) and value.get("version") != PROTOCOL_VERSION:
            later = {"local_size": 1, "transport": "auto", "release": "unknown"}
            value = later | {name: value[name] for name in names & value.keys()}
        if not isinstance(value, dict) or set(value) != names:
            raise MalformedMessage("not a hello of this protocol")
        for field in fields(HelloMessage):
            given = value[field.name]
            if type(given) is not field.type or (isinstance(given, str) and len(given) > _MOST_TEXT):
                raise MalformedMessage(f"not a hello of this protocol: {field.name} is {str(given)[:50]!r}")
        return HelloMessage(**value)


@dataclass(frozen=True)
class PullRequestMessage:
    """`rank` asks for everything that its peer sends it in collective `sequence` of a process set.

    `compared`: of the signature of what it means to do (`WireSignature.compared`).
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
    """A control message (a dataclass or plain values) as JSON. Control is rare: readable beats small."""
    value = asdict(message) if hasattr(message, "__dataclass_fields__") else message
    return json.dumps(value, sort_keys=True).encode()


def decode_message(data: bytes) -> Any:
    """The values of a control message. Raises MalformedMessage: a stranger may send any bytes."""
    try:
        value = json.loads(data)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text, and can't be proved
        return value
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"not a message of this protocol: {str(error)[:100]}") from error


def decode_message_fields(data: bytes, **types: type) -> dict[str, Any]:
    """The named values of a control message, an object. Raises MalformedMessage where one is missing or differs.

    A session travels as hexadecimal text and is returned as bytes when `bytes` is asked for.
    """
    message = decode_message(data)
    if not isinstance(message, dict):
        raise MalformedMessage("not a message of this protocol: no object")
    found: dict[str, Any] = {}
    for name, wanted in types.items():
        value = message.get(name)
        if type(value) is not (str if wanted is bytes else wanted):
            raise MalformedMessage(f"not a message of this protocol: {name} is missing or of another type")
        found[name] = _message_octets(name, value) if wanted is bytes else value
    return found


def _message_octets(name: str, text: Any) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise MalformedMessage(f"not a message of this protocol: {name} is no hexadecimal text") from error


# 32 bytes: the payload behind it stays aligned for every dtype.
_HEADER: Final = struct.Struct("<HBBIQIIQ")
_MAGIC: Final = 0x5274
HEADER_BYTES: Final = _HEADER.size


class WireStep(IntEnum):
    """Which part of a collective a frame belongs to."""

    SIZES = 0  # how many elements follow, where that may differ between ranks
    CONTRIBUTION = 1  # reduce-scatter: what a rank adds to a chunk that another rank owns
    RESULT = 2  # all-gather, broadcast, all-to-all: final values
    READY = 3  # broadcast: nothing but the fact that the sender has come, and all that get it from the sender


class FrameHeader(NamedTuple):
    """Where a payload of `length` bytes belongs."""

    generation: int
    sequence: int
    step: WireStep
    segment: int
    dtype: str
    length: int

    def encode(self) -> bytes:
        return encoded_header(*self)


def encoded_header(generation: int, sequence: int, step: WireStep, segment: int, dtype: str, length: int) -> bytes:
    """What `FrameHeader` says, as bytes."""
    return _HEADER.pack(_MAGIC, CODES[dtype], step, generation, sequence, segment, 0, length)


class WireFrame(NamedTuple):
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


def split_frame(data: bytes) -> WireFrame:
    """Undo `WireFrame.joined`, without a copy of the payload."""
    return WireFrame(data[:HEADER_BYTES], memoryview(data)[HEADER_BYTES:])


def payload_octets(array: np.ndarray[Any, Any]) -> memoryview:
    """The memory of a 1-d contiguous array as bytes: the buffer protocol has no name for bfloat16."""
    return array.view(np.uint8).data


def describe_difference(expected: bytes, expected_length: int, got: bytes, length: int) -> str:
    """Say which frame came in place of which."""
    head, other = _named_frame_head(expected), _named_frame_head(got)
    return f"expected {head} with {expected_length} bytes of payload, got {other} with {length}"


def _named_frame_head(head: bytes) -> str:
    """`head` in words if it is a frame's header, else in hexadecimal digits."""
    names = {code: name for name, code in CODES.items()}
    try:
        magic, dtype, step, generation, sequence, segment, _, length = _HEADER.unpack(head)
        if magic == _MAGIC:
            return str(FrameHeader(generation, sequence, WireStep(step), segment, names[dtype], length))
    except (struct.error, ValueError, KeyError):
        pass
    return f"a frame that begins with {head.hex() or 'nothing'}"
