"""Messages with Python objects, encoded without pickle by default, or with the reason why an object can't be sent.

A rank whose object can't be sent sends the reason instead: every rank then raises at once, with the same text.
"""

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.wire.values import ForeignWireValues, decode_value, encode_value
from ringtrain.errors import ConfigurationError, MismatchError

# First byte of a message.
_PLAIN, _PICKLED, _FOREIGN, _REASON = b"V", b"P", b"T", b"E"


def encode_object(value: Any, allow_pickle: bool = False, foreign: ForeignWireValues | None = None) -> bytes:
    """Return `value` as bytes. Supports plain data, arrays and types of `foreign`; with `allow_pickle`, all types that
    pickle supports.

    Raises ConfigurationError, or pickle's errors, for a value that can't be sent.
    """
    if allow_pickle:
        return _PICKLED + pickle.dumps(value)
    if foreign is not None:
        try:
            return _FOREIGN + foreign.pack(value)  # a whole state_dict in one message, not one per tensor
        except ConfigurationError:
            pass  # encode its parts, some of which are plain
    return _PLAIN + encode_value(value, foreign)


def decode_object(message: bytes, allow_pickle: bool = False, foreign: ForeignWireValues | None = None) -> Any:
    """Return the object in a message from `encode_object`. Unpickles only if `allow_pickle`."""
    kind, content = message[:1], message[1:]
    if kind == _PLAIN:
        return decode_value(content, foreign)
    if kind == _FOREIGN and foreign is not None:
        return foreign.unpack(content)
    if kind == _PICKLED and allow_pickle:
        return pickle.loads(content)
    raise ConfigurationError(
        "received a pickled object without allow_pickle; pass the same allow_pickle on every rank"
        if kind == _PICKLED
        else "received an object of another framework; every rank must call the same module"
    )


def pack_object(value: Any, allow_pickle: bool = False, foreign: ForeignWireValues | None = None) -> bytes:
    """Return `value` as bytes like `encode_object`. If it can't be sent, return a message with the reason. Never
    raises."""
    try:
        return encode_object(value, allow_pickle, foreign)
    except Exception as error:  # any error, because the other ranks wait
        known = isinstance(error, ConfigurationError)
        return _REASON + (str(error) if known else f"{type(error).__name__}: {error}").encode("utf-8", "replace")


def is_wire_refusal(message: bytes) -> bool:
    """Return whether `message` contains, instead of an object, the reason why its sender could not encode one."""
    return message[:1] == _REASON


def unpack_object(
    message: bytes, rank: int, allow_pickle: bool = False, foreign: ForeignWireValues | None = None
) -> Any:
    """Return the object in a message from `pack_object`, which rank `rank` sent. Unpickles only if `allow_pickle`.

    Raises ConfigurationError with the reason from that rank if the object could not be packed.
    """
    if is_wire_refusal(message):
        raise ConfigurationError(f"rank {rank}: the object can't be sent: {message[1:].decode()}")
    return decode_object(message, allow_pickle, foreign)


def object_header(message: bytes, root: int, allow_pickle: bool) -> NDArray[np.int64]:
    """Return the numbers that a rank sends before its object: root, `allow_pickle` and the message's length."""
    return np.array([[root, allow_pickle, len(message)]], np.int64)


def check_headers(rows: NDArray[np.int64], ranks: Sequence[int], what: str) -> list[int]:
    """Check that all ranks passed the same arguments, by their headers `rows`. Return their messages' lengths.

    Raises MismatchError, on every rank, if ranks passed different arguments.
    """
    for column, field, show in ((0, "root_rank", int), (1, "allow_pickle", bool)):
        for rank, row in zip(ranks[1:], rows[1:], strict=True):
            if row[column] != rows[0][column]:
                raise MismatchError(
                    f"{what}: {field} is {show(rows[0][column])} on rank {ranks[0]} and "
                    f"{show(row[column])} on rank {rank}; every rank must pass the same value"
                )
    return [int(length) for length in rows[:, 2]]
