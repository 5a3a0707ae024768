"""Encoding of requests and answers between a rank and a data worker as the messages of one gRPC stream.

A rank sends requests: a JSON header, followed by the raw indices. A data worker sends answers: a message with a JSON
header, then messages with the raw bytes of the arrays in the header. Nothing is unpickled.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ringtrain.adapter import dtype_of

SERVICE: Final = "ringtrain.v1.DataWorker"
METHOD: Final = "Serve"
# 1 MiB: a larger chunk gains nothing on loopback, and a stopped reader occupies at most twice this size.
CHUNK_BYTES: Final = 1 << 20
_LENGTH: Final = struct.Struct("<I")
_ALIGNMENT: Final = 64

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class DataWorkerRequest:
    """Request for the samples `indices`, or for the next item of the split `uri` after `offset`. `key`: number that the
    rank assigns, by which it matches the answer."""

    key: int
    function: str
    indices: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    uri: str = ""
    offset: int = 0

    def encode(self) -> bytes:
        """Return the request as one message."""
        head = {"key": self.key, "function": self.function, "uri": self.uri, "offset": self.offset}
        text = json.dumps(head).encode()
        return b"".join([_LENGTH.pack(len(text)), text, np.ascontiguousarray(self.indices, "<i8").tobytes()])

    @staticmethod
    def decode(message: bytes) -> "DataWorkerRequest":
        """Return the request that `encode` wrote into `message`. Raises ValueError for an invalid message."""
        try:
            (length,) = _LENGTH.unpack_from(message)
            end = _LENGTH.size + length
            head = json.loads(message[_LENGTH.size : end])
            indices = np.frombuffer(message[end:], "<i8").astype(np.int64)
            return DataWorkerRequest(
                int(head["key"]), str(head["function"]), indices, str(head["uri"]), int(head["offset"])
            )
        except (struct.error, KeyError, TypeError, UnicodeError) as error:
            raise ValueError(f"the message is not a request: {error}") from error

    def describe(self) -> str:
        """Return the requested indices, or the split and offset, as text for log lines and errors."""
        if self.uri:
            return f"split {self.uri} from offset {self.offset}"
        shown = ", ".join(map(str, self.indices[:_SHOWN]))
        rest = f", … ({self.indices.size} in all)" if self.indices.size > _SHOWN else ""
        return f"indices {shown}{rest}"


_SHOWN: Final = 16


@dataclass(frozen=True)
class BatchArrayHead:
    """Name, dtype and shape of one array of an answer. `dtype`: numpy's short name, or bfloat16."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return prod(self.shape) * dtype_of(self.dtype).itemsize


@dataclass(frozen=True)
class DataWorkerAnswer:
    """Answer of a data worker to one request, or a message about the worker itself.

    `kind`: `hello` (the first answer; `slots`: number of loader processes), `alive`, `loaded` with `arrays`, `ended` (a
    split has no more items), `failed` (the user's function raised, or returned data that cannot be sent: `text`),
    `crashed` (the loader process ended: `text`). `offset`: position in a split after these arrays.
    """

    kind: str
    key: int = 0
    text: str = ""
    slots: int = 0
    offset: int = 0
    heads: tuple[BatchArrayHead, ...] = ()
    arrays: Arrays = field(default_factory=dict)

    def encode_head(self) -> bytes:
        """Return the answer without its arrays as JSON. The bytes of the arrays follow in further messages."""
        document = {name: getattr(self, name) for name in ("kind", "key", "text", "slots", "offset")}
        document["heads"] = [[head.name, head.dtype, list(head.shape)] for head in self.heads]
        return json.dumps(document).encode()

    @staticmethod
    def decode_head(message: bytes) -> "DataWorkerAnswer":
        """Return the answer that `encode_head` wrote into `message`, still without its arrays."""
        document = json.loads(message)
        heads = tuple(BatchArrayHead(name, dtype, tuple(shape)) for name, dtype, shape in document.pop("heads"))
        return DataWorkerAnswer(**document, heads=heads)


def array_places(heads: tuple[BatchArrayHead, ...]) -> tuple[list[int], int]:
    """Return the offset of each array in the block of all arrays' bytes, and the size of the block. Offsets are aligned
    for every dtype."""
    begins, end = [], 0
    for head in heads:
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        begins.append(begin)
        end = begin + head.nbytes
    return begins, end


def read_batch_answers(messages: Iterator[bytes]) -> Iterator[DataWorkerAnswer]:
    """Assemble the messages of a stream into answers. An answer's arrays share one block of memory."""
    for message in messages:
        answer = DataWorkerAnswer.decode_head(message)
        begins, total = array_places(answer.heads)
        block, at = np.empty(total, np.uint8), 0
        while at < total:
            part = next(messages, None)
            if part is None:
                return
            block[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
        arrays = {
            head.name: block[begin : begin + head.nbytes].view(dtype_of(head.dtype)).reshape(head.shape)
            for head, begin in zip(answer.heads, begins, strict=True)
        }
        yield DataWorkerAnswer(answer.kind, answer.key, answer.text, answer.slots, answer.offset, answer.heads, arrays)


def array_heads(arrays: Mapping[str, NDArray[Any]]) -> tuple[BatchArrayHead, ...]:
    """Return name, dtype and shape of each of `arrays`."""
    return tuple(BatchArrayHead(name, batch_travel_name(array.dtype), array.shape) for name, array in arrays.items())


def batch_travel_name(dtype: np.dtype[Any]) -> str:
    """Return the name of `dtype` in messages."""
    return "bfloat16" if dtype.name == "bfloat16" else dtype.str
