"""Plain values as bytes, without pickle: JSON for the structure, raw bytes behind it for arrays.

JSON has no bytes, arrays, tuples or dicts with keys that are not strings: these become an object with the one key
`$<kind>`. A dict of the user's that looks like one of them is written as a list of pairs, so nothing is ambiguous.
"""

import json
import struct
from typing import Any, Final

import numpy as np

from ringtrain.errors import ConfigurationError
from ringtrain.wire.dtypes import dtype_of

_LENGTH: Final = struct.Struct("<Q")


def encode_value(value: Any) -> bytes:
    """Return `value` as bytes. Raises ConfigurationError for a type that is not carried, and says where it is."""
    blobs: list[bytes] = []
    text = json.dumps(_plain(value, blobs, "value"), separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *blobs])


def decode_value(data: bytes) -> Any:
    """Undo `encode_value`. Runs no code of the sender's."""
    (length,) = _LENGTH.unpack_from(data)
    start = _LENGTH.size + length
    return _value(json.loads(data[_LENGTH.size : start]), memoryview(data)[start:], [0])


def _plain(value: Any, blobs: list[bytes], where: str) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, bytes | bytearray):
        blobs.append(bytes(value))
        return {"$bytes": len(value)}
    if isinstance(value, np.generic):
        return {"$scalar": _plain(np.asarray(value), blobs, where)}
    if isinstance(value, np.ndarray):
        return _plain_array(value, blobs, where)
    if type(value) is list:
        return [_plain(item, blobs, f"{where}[{i}]") for i, item in enumerate(value)]
    if type(value) is tuple:
        return {"$tuple": [_plain(item, blobs, f"{where}[{i}]") for i, item in enumerate(value)]}
    if type(value) is dict:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: _plain(item, blobs, f"{where}[{key!r}]") for key, item in value.items()}
        pairs = [
            (_plain(k, blobs, f"a key of {where}"), _plain(v, blobs, f"{where}[{k!r}]")) for k, v in value.items()
        ]
        return {"$dict": pairs}
    raise ConfigurationError(
        f"{where} is of type {type(value).__name__}, which is not sent between ranks without allow_pickle=True"
    )


def _plain_array(value: np.ndarray[Any, Any], blobs: list[bytes], where: str) -> Any:
    if value.dtype.hasobject or (value.dtype.kind == "V" and value.dtype.name != "bfloat16"):
        raise ConfigurationError(
            f"{where} is an array of {value.dtype}, which is not sent between ranks without allow_pickle=True"
        )
    name = "bfloat16" if value.dtype.name == "bfloat16" else value.dtype.str
    blobs.append(value.tobytes())
    return {"$array": [name, list(value.shape)]}


def _value(plain: Any, blobs: memoryview, at: list[int]) -> Any:
    """`at`: how much of `blobs` has been used; values are decoded in the order in which they were encoded."""
    if isinstance(plain, list):
        return [_value(item, blobs, at) for item in plain]
    if not isinstance(plain, dict):
        return plain
    kind = next(iter(plain), "")
    if not kind.startswith("$"):
        return {key: _value(item, blobs, at) for key, item in plain.items()}
    content = plain[kind]
    if kind == "$bytes":
        return bytes(_take(blobs, at, content))
    if kind == "$array":
        dtype = dtype_of("bfloat16") if content[0] == "bfloat16" else np.dtype(content[0])
        count = int(np.prod(content[1], dtype=np.int64)) * dtype.itemsize
        return np.frombuffer(bytearray(_take(blobs, at, count)), dtype).reshape(content[1])
    if kind == "$scalar":
        return _value(content, blobs, at)[()]
    if kind == "$tuple":
        return tuple(_value(item, blobs, at) for item in content)
    return {_value(key, blobs, at): _value(item, blobs, at) for key, item in content}


def _take(blobs: memoryview, at: list[int], count: int) -> memoryview:
    start, at[0] = at[0], at[0] + count
    return blobs[start : at[0]]
