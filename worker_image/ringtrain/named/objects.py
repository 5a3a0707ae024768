"""Python objects as bytes that are safe to read from the network: JSON with a few tagged types, no code in it."""

import base64
import json
import pickle
from typing import Any

import numpy as np

from ringtrain.errors import ConfigurationError
from ringtrain.wire.dtypes import dtype_of

_TAG = "__ringtrain__"


def dumps(value: Any, allow_pickle: bool = False) -> bytes:
    """Return `value` as bytes. Numbers, strings, bytes, None, lists, tuples, sets, dictionaries and numpy arrays
    are understood; anything else raises ConfigurationError, unless `allow_pickle` asks for pickle by name.
    """
    if allow_pickle:
        return b"P" + pickle.dumps(value)
    return b"J" + json.dumps(_tagged(value)).encode()


def loads(message: bytes, allow_pickle: bool = False) -> Any:
    """Return the object that `dumps` was given. Never unpickles unless `allow_pickle`."""
    if message[:1] == b"P":
        if not allow_pickle:
            raise ConfigurationError(
                "a pickled object arrived and this rank did not ask for one; pass the same allow_pickle on "
                "every rank"
            )
        return pickle.loads(message[1:])
    return _untagged(json.loads(message[1:]))


def _tagged(value: Any) -> Any:
    if value is None or isinstance(value, bool | str) or type(value) in (int, float):
        return value
    if isinstance(value, list):
        return [_tagged(item) for item in value]
    if isinstance(value, dict):
        return {_TAG: "dict", "items": [[_tagged(key), _tagged(item)] for key, item in value.items()]}
    if isinstance(value, tuple | set | frozenset):
        return {
            _TAG: type(value).__name__ if type(value) in _SEQUENCES else "tuple",
            "items": [_tagged(v) for v in value],
        }
    if isinstance(value, bytes):
        return {_TAG: "bytes", "data": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray | np.generic):
        return _tagged_array(np.asarray(value), scalar=isinstance(value, np.generic))
    raise ConfigurationError(
        f"an object of type {type(value).__module__}.{type(value).__qualname__} can't be sent as plain data; "
        "send its "
        "parts (numbers, strings, lists, dictionaries, arrays), or pass allow_pickle=True on every rank if "
        "you trust them all"
    )


def _tagged_array(array: np.ndarray[Any, Any], scalar: bool) -> dict[str, Any]:
    if array.dtype.hasobject:
        raise ConfigurationError(f"an array of {array.dtype} can't be sent as plain data; expected numbers")
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {_TAG: "scalar" if scalar else "array", "dtype": array.dtype.name, "shape": array.shape, "data": data}


_SEQUENCES: dict[type, Any] = {tuple: tuple, set: set, frozenset: frozenset}


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value[_TAG]
    if kind == "dict":
        return {_untagged(key): _untagged(item) for key, item in value["items"]}
    if kind == "bytes":
        return base64.b64decode(value["data"])
    if kind in ("array", "scalar"):
        flat = np.frombuffer(base64.b64decode(value["data"]), dtype_of(value["dtype"])).copy()
        array = flat.reshape(value["shape"])
        return array if kind == "array" else array[()]
    restore = {made.__name__: make for made, make in _SEQUENCES.items()}[kind]
    return restore(_untagged(item) for item in value["items"])
