"""Python objects as bytes that are safe to read from the network."""

import pickle
from typing import Any

from ringtrain.errors import ConfigurationError
from ringtrain.wire.values import decode_value, encode_value


def dumps(value: Any, allow_pickle: bool = False) -> bytes:
    """Return `value` as bytes: plain data and numpy arrays, or with `allow_pickle` anything. Raises
    ConfigurationError for what is neither."""
    return b"P" + pickle.dumps(value) if allow_pickle else b"V" + encode_value(value)


def loads(message: bytes, allow_pickle: bool = False) -> Any:
    """Return the object that `dumps` was given. Never unpickles unless `allow_pickle`."""
    if message[:1] != b"P":
        return decode_value(message[1:])
    if not allow_pickle:
        raise ConfigurationError(
            "a pickled object arrived and this rank did not ask for one; pass the same allow_pickle on every rank"
        )
    return pickle.loads(message[1:])
