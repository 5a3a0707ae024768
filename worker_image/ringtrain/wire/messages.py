"""Requests and answers of the control methods, and the request that opens a stream of frames."""

import json
import struct
from dataclasses import asdict, dataclass
from typing import Any, Final

PROTOCOL_VERSION: Final = 2
SESSION_BYTES: Final = 16

HELLO: Final = "Hello"
PROVE: Final = "Prove"
WATCH: Final = "Watch"
STATUS: Final = "Status"
ABORT: Final = "Abort"
METHODS: Final = (HELLO, PROVE, WATCH, STATUS, ABORT)

_PULL: Final = struct.Struct("<16sIIQ")


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


@dataclass(frozen=True)
class PullRequest:
    """`rank` asks for everything that its peer sends it in collective `sequence` of a process set."""

    session: bytes
    rank: int
    process_set: int
    sequence: int
    signature: bytes

    def encode(self) -> bytes:
        return _PULL.pack(self.session, self.rank, self.process_set, self.sequence) + self.signature

    @staticmethod
    def decode(data: bytes) -> "PullRequest":
        session, rank, process_set, sequence = _PULL.unpack_from(data)
        return PullRequest(session, rank, process_set, sequence, data[_PULL.size :])


def dump(message: Any) -> bytes:
    """A control message (a dataclass or plain values) as JSON. Control is rare: readable beats small."""
    value = asdict(message) if hasattr(message, "__dataclass_fields__") else message
    return json.dumps(value, sort_keys=True).encode()


def load(data: bytes) -> Any:
    return json.loads(data)
