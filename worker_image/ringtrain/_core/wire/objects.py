"""Python objects as messages that are safe to read from the network, or that say why there is none.

A rank whose object can't be sent sends the reason in its place: every rank then raises at once, in the same words.
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
    """Return `value` as bytes: plain data, arrays and what `foreign` knows, or with `allow_pickle` anything.

    Raises ConfigurationError, or what pickle raises, for what can't be sent.
    """
    if allow_pickle:
        return _PICKLED + pickle.dumps(value)
    if foreign is not None:
        try:
            return _FOREIGN + foreign.pack(value)  # a state_dict as a whole: one message, not one a tensor
        except ConfigurationError:
            pass  # or as parts, of which some are plain
    return _PLAIN + encode_value(value, foreign)


def decode_object(message: bytes, allow_pickle: bool = False, foreign: ForeignWireValues | None = None) -> Any:
    """Return the object that `encode_object` was given. Never unpickles unless `allow_pickle`."""
    kind, content = message[:1], message[1:]
    if kind == _PLAIN:
        return decode_value(content, foreign)
    if kind == _FOREIGN and foreign is not None:
        return foreign.unpack(content)
    if kind == _PICKLED and allow_pickle:
        return pickle.loads(content)
    raise ConfigurationError(
        "a pickled object arrived and this rank did not ask for one; pass the same allow_pickle on every rank"
        if kind == _PICKLED
        else "an object arrived that another framework packed; every rank must call the same module"
    )


def pack_object(value: Any, allow_pickle: bool = False, foreign: ForeignWireValues | None = None) -> bytes:
    """Return the message for `value`; where it can't be sent, one that holds the reason. Never raises."""
    try:
        return encode_object(value, allow_pickle, foreign)
    except Exception as error:  # whatever it is, the other ranks are waiting
        known = isinstance(error, ConfigurationError)
        return _REASON + (str(error) if known else f"{type(error).__name__}: {error}").encode("utf-8", "replace")


def is_wire_refusal(message: bytes) -> bool:
    """Whether `message` holds the reason why there is no object."""
    return message[:1] == _REASON


def unpack_object(
    message: bytes, rank: int, allow_pickle: bool = False, foreign: ForeignWireValues | None = None
) -> Any:
    """Return the object that world rank `rank` packed. Raises ConfigurationError with its reason if it had one."""
    if is_wire_refusal(message):
        raise ConfigurationError(f"rank {rank}: the object can't be sent: {message[1:].decode()}")
    return decode_object(message, allow_pickle, foreign)


def object_header(message: bytes, root: int, allow_pickle: bool) -> NDArray[np.int64]:
    """What a rank shows the others before its message: one row."""
    return np.array([[root, allow_pickle, len(message)]], np.int64)


def check_headers(rows: NDArray[np.int64], ranks: Sequence[int], what: str) -> list[int]:
    """Return the lengths of all ranks' messages. `rows`: the header of each of `ranks`.

    Raises MismatchError, on every rank, where ranks mean different things.
    """
    for column, field, show in ((0, "root_rank", int), (1, "allow_pickle", bool)):
        for rank, row in zip(ranks[1:], rows[1:], strict=True):
            if row[column] != rows[0][column]:
                raise MismatchError(
                    f"{what}: {field} is {show(rows[0][column])} on rank {ranks[0]} and {show(row[column])} on "
                    f"rank {rank}; every rank must pass the same"
                )
    return [int(length) for length in rows[:, 2]]
