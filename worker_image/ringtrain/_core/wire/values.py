"""Encoding of plain values as bytes without pickle: JSON for the structure, then the raw bytes of arrays.

JSON has no bytes, arrays, tuples, sets or dicts with keys other than strings: these become an object with the one key
`$<kind>`, and so do the values of `wire.records`. A user's dict with such a key is written as a list of pairs, so the
encoding is unambiguous.
"""

import json
import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ringtrain._core.wire import records
from ringtrain._core.wire.dtypes import dtype_of, is_made_of_its_name
from ringtrain.errors import ConfigurationError

_LENGTH: Final = struct.Struct("<Q")


@dataclass(frozen=True)
class ForeignWireValues:
    """Functions by which a framework encodes and decodes its own types, mainly tensors.

    `pack` raises ConfigurationError for unsupported values; `unpack` runs no code of the sender's.
    """

    pack: Callable[[Any], bytes]
    unpack: Callable[[bytes], Any]


def encode_value(value: Any, foreign: ForeignWireValues | None = None) -> bytes:
    """Return `value` as bytes. Raises ConfigurationError for an unsupported type, naming where in `value` it is."""
    writer = _WireValueWriter([], foreign)
    text = json.dumps(writer.plain(value, "value"), separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *writer.blobs])


def decode_value(data: bytes, foreign: ForeignWireValues | None = None) -> Any:
    """Return the value that `encode_value` has encoded. Runs no code from the message."""
    (length,) = _LENGTH.unpack_from(data)
    start = _LENGTH.size + length
    return _WireValueReader(memoryview(data)[start:], foreign).value(json.loads(data[_LENGTH.size : start]))


@dataclass(frozen=True)
class _WireValueWriter:
    """Encoder of a value as JSON. `blobs`: receives bytes values and the bytes of arrays."""

    blobs: list[bytes]
    foreign: ForeignWireValues | None

    def plain(self, value: Any, where: str) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if type(value) is list:
            return self._items(value, where)
        if type(value) in _CONTAINERS:
            return {_CONTAINERS[type(value)]: self._items(value, where)}
        if type(value) is dict and all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.plain(item, f"{where}[{key!r}]") for key, item in value.items()}
        if type(value) in _DICTS:
            return {_DICTS[type(value)]: [self._pair(pair, where) for pair in value.items()]}
        if type(value) is complex:
            return {"$complex": [value.real, value.imag]}
        if type(value) in _BYTES:
            self.blobs.append(bytes(value))
            return {_BYTES[type(value)]: len(value)}
        if isinstance(value, np.generic):
            return {"$scalar": self.plain(np.asarray(value), where)}
        if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
            return self._array(value, where)
        if (parts := records.parts_of(value)) is not None:
            return {"$record": [parts[0], self.plain(parts[1], where)]}
        return self._foreign(value, where)

    def _items(self, values: Any, where: str) -> list[Any]:
        return [self.plain(item, f"{where}[{i}]") for i, item in enumerate(values)]

    def _pair(self, pair: tuple[Any, Any], where: str) -> tuple[Any, Any]:
        return self.plain(pair[0], f"a key of {where}"), self.plain(pair[1], f"{where}[{pair[0]!r}]")

    def _array(self, value: np.ndarray[Any, Any], where: str) -> Any:
        if not is_made_of_its_name(value.dtype):
            raise ConfigurationError(
                f"{where} is an array of {value.dtype}, which is not sent between ranks without allow_pickle=True"
            )
        name = "bfloat16" if value.dtype.name == "bfloat16" else value.dtype.str
        self.blobs.append(value.tobytes())
        return {"$array": [name, list(value.shape)]}

    def _foreign(self, value: Any, where: str) -> Any:
        refused = (
            f"{where} is of type {type(value).__name__}, which is not sent between ranks without allow_pickle=True"
        )
        if self.foreign is None:
            raise ConfigurationError(refused)
        try:
            blob = self.foreign.pack(value)
        except ConfigurationError as error:
            raise ConfigurationError(f"{refused} ({error})") from error
        self.blobs.append(blob)
        return {"$foreign": len(blob)}


class _WireValueReader:
    """Decoder of values, which must be read in the order in which they were encoded."""

    def __init__(self, blobs: memoryview, foreign: ForeignWireValues | None) -> None:
        self._blobs = blobs
        self._foreign = foreign
        self._at = 0

    def value(self, plain: Any) -> Any:
        if isinstance(plain, list):
            return [self.value(item) for item in plain]
        if not isinstance(plain, dict):
            return plain
        kind = next(iter(plain), "")
        if not kind.startswith("$"):
            return {key: self.value(item) for key, item in plain.items()}
        return self._special(kind, plain[kind])

    def _special(self, kind: str, content: Any) -> Any:
        if kind in _MADE_OF_ITEMS:
            return _MADE_OF_ITEMS[kind](self.value(item) for item in content)
        if kind in _MADE_OF_PAIRS:
            return _MADE_OF_PAIRS[kind]((self.value(key), self.value(item)) for key, item in content)
        if kind in _MADE_OF_BYTES:
            return _MADE_OF_BYTES[kind](self._take(content))
        if kind == "$complex":
            return complex(*content)
        if kind == "$scalar":
            return self.value(content)[()]
        if kind == "$array":
            dtype = dtype_of("bfloat16") if content[0] == "bfloat16" else np.dtype(content[0])
            count = int(np.prod(content[1], dtype=np.int64)) * dtype.itemsize
            return np.frombuffer(bytearray(self._take(count)), dtype).reshape(content[1])
        if kind == "$record":
            return records.make_record(content[0], self.value(content[1]))
        if kind == "$foreign" and self._foreign is not None:
            return self._foreign.unpack(bytes(self._take(content)))
        raise ConfigurationError(f"received a value of unknown kind {kind!r}; import the same module on all ranks")

    def _take(self, count: int) -> memoryview:
        start, self._at = self._at, self._at + count
        return self._blobs[start : self._at]


_CONTAINERS: Final[dict[type, str]] = {tuple: "$tuple", set: "$set", frozenset: "$frozenset"}
_DICTS: Final[dict[type, str]] = {dict: "$dict", OrderedDict: "$ordered"}
_BYTES: Final[dict[type, str]] = {bytes: "$bytes", bytearray: "$bytearray"}
_MADE_OF_ITEMS: Final[dict[str, Any]] = {kind: made for made, kind in _CONTAINERS.items()}
_MADE_OF_PAIRS: Final[dict[str, Any]] = {kind: made for made, kind in _DICTS.items()}
_MADE_OF_BYTES: Final[dict[str, Any]] = {kind: made for made, kind in _BYTES.items()}
