"""Plain values between ranks: broadcast and allgather of what JSON can say, of arrays and of bytes."""

import pickle
from typing import Any

import numpy as np

from ringtrain.collectives import work
from ringtrain.collectives.process_sets import ProcessSet, communicator_of
from ringtrain.collectives.session import current
from ringtrain.collectives.submit import call
from ringtrain.wire.values import decode_value, encode_value


def broadcast_object(
    value: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    allow_pickle: bool = False,
) -> Any:
    """Return `value` of world rank `root_rank`; what others pass is ignored.

    Carried: None, booleans, numbers, strings, bytes, lists, tuples, dicts, numpy arrays and scalars. Anything else
    needs `allow_pickle=True` on every rank, and then trusts the root: unpickling runs code of its choice.
    Raises ConfigurationError for a value that can't be carried.
    """
    session = current()
    is_root = session.config.rank == root_rank
    communicator_of(session, process_set)
    data = _dump(value, allow_pickle) if is_root else b""
    length = call(work.broadcast(np.array([len(data)], np.int64), root_rank, _of(name, "length")), process_set)
    buffer = np.frombuffer(data, np.uint8) if is_root else np.empty(int(length[0]), np.uint8)
    received = call(work.broadcast(buffer, root_rank, _of(name, "value")), process_set)
    return value if is_root else _load(received.tobytes(), allow_pickle)


def allgather_object(
    value: Any, name: str | None = None, process_set: ProcessSet | None = None, *, allow_pickle: bool = False
) -> list[Any]:
    """Return `value` of every rank, in rank order. What can be carried is as in `broadcast_object`."""
    data = np.frombuffer(_dump(value, allow_pickle), np.uint8)
    lengths = np.array([len(data)], np.int64)
    gathered = call(work.grouped_allgather([lengths, data], _of(name, "object")), process_set)
    ends = np.cumsum(gathered[0])
    parts = np.split(gathered[1], ends[:-1])
    return [_load(part.tobytes(), allow_pickle) for part in parts]


def _of(name: str | None, what: str) -> str | None:
    return None if name is None else f"{name}.{what}"


def _dump(value: Any, allow_pickle: bool) -> bytes:
    return pickle.dumps(value) if allow_pickle else encode_value(value)


def _load(data: bytes, allow_pickle: bool) -> Any:
    return pickle.loads(data) if allow_pickle else decode_value(data)
