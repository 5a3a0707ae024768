"""Broadcast and gather Python objects: plain data and arrays, or with `allow_pickle` anything."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ringtrain.named import arrays, objects
from ringtrain.named.process_sets import ProcessSet
from ringtrain.named.world import global_process_set, queue_of


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    allow_pickle: bool = False,
) -> Any:
    """Return the object of `root_rank` on every rank. `session`: accepted for Horovod's sake.

    Numbers, strings, bytes, None, lists, tuples, dictionaries and arrays travel as data that cannot run code;
    anything else needs `allow_pickle=True` on every rank.
    """
    name = name or type(obj).__name__
    own = queue_of(process_set).group.rank == root_rank
    message = objects.dumps(obj, allow_pickle) if own else b""
    (length,) = arrays.broadcast([np.array([len(message)])], root_rank, process_set, f"{name}.length")
    data = np.frombuffer(message, np.uint8) if own else np.empty(int(length[0]), np.uint8)
    (received,) = arrays.broadcast([data], root_rank, process_set, f"{name}.data")
    return obj if own else objects.loads(received.tobytes(), allow_pickle)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    allow_pickle: bool = False,
) -> Callable[[Any], Any]:
    """Return `broadcast_object` with everything but the object settled."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set, allow_pickle)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    allow_pickle: bool = False,
) -> list[Any]:
    """Return every rank's object, in rank order. What may be sent: as for `broadcast_object`."""
    name = name or type(obj).__name__
    message = np.frombuffer(objects.dumps(obj, allow_pickle), np.uint8)
    lengths, data = arrays.allgather([np.array([len(message)]), message], process_set, f"{name}.object")
    parts = np.split(data, np.cumsum(lengths)[:-1])
    return [objects.loads(part.tobytes(), allow_pickle) for part in parts]
