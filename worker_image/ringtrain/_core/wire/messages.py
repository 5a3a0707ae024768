"""Requests and answers of the control methods, and the request that opens a stream of frames."""

import json
import struct
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

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


class Malformed(ValueError):
    """Bytes that are no message of this protocol: never from a peer of this version."""


@dataclass(frozen=True)
class Hello:
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
    def parse(value: object) -> "Hello":
        """Return the hello that a decoded message describes. Raises Malformed for anything else.

        A hello of another version may have other fields: what tells whose it is, and of which version, is read.
        """
        names = {field.name for field in fields(Hello)}
        if isinstance(value, dict) and value.get("version") != PROTOCOL_VERSION:
            later = {"local_size": 1, "transport": "auto", "release": "unknown"}
            value = later | {name: value[name] for name in names & value.keys()}
        if not isinstance(value, dict) or set(value) != names:
            raise Malformed("not a hello of this protocol")
        for field in fields(Hello):
            given = value[field.name]
            if type(given) is not field.type or (isinstance(given, str) and len(given) > _MOST_TEXT):
                raise Malformed(f"not a hello of this protocol: {field.name} is {str(given)[:50]!r}")
        return Hello(**value)


@dataclass(frozen=True)
class PullRequest:
    """`rank` asks for everything that its peer sends it in collective `sequence` of a process set.

    `compared`: of the signature of what it means to do (`Signature.compared`).
    """

    session: bytes
    rank: int
    process_set: int
    sequence: int
    compared: bytes

    def encode(self) -> bytes:
        return _PULL.pack(self.session, self.rank, self.process_set, self.sequence) + self.compared

    @staticmethod
    def decode(data: bytes) -> "PullRequest":
        session, rank, process_set, sequence = _PULL.unpack_from(data)
        return PullRequest(session, rank, process_set, sequence, data[_PULL.size :])


def dump(message: Any) -> bytes:
    """A control message (a dataclass or plain values) as JSON. Control is rare: readable beats small."""
    value = asdict(message) if hasattr(message, "__dataclass_fields__") else message
    return json.dumps(value, sort_keys=True).encode()


def load(data: bytes) -> Any:
    """The values of a control message. Raises Malformed: a stranger may send any bytes."""
    try:
        value = json.loads(data)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text, and can't be proved
        return value
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not a message of this protocol: {str(error)[:100]}") from error


def load_fields(data: bytes, **types: type) -> dict[str, Any]:
    """The named values of a control message, which is an object. Raises Malformed where one is missing or differs.

    A session travels as hexadecimal text and is returned as bytes when `bytes` is asked for.
    """
    message = load(data)
    if not isinstance(message, dict):
        raise Malformed("not a message of this protocol: no object")
    found: dict[str, Any] = {}
    for name, wanted in types.items():
        value = message.get(name)
        if type(value) is not (str if wanted is bytes else wanted):
            raise Malformed(f"not a message of this protocol: {name} is missing or of another type")
        found[name] = _unhex(name, value) if wanted is bytes else value
    return found


def _unhex(name: str, text: Any) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise Malformed(f"not a message of this protocol: {name} is no hexadecimal text") from error
