"""Broadcast and allgather of plain Python values: JSON types, arrays and bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.process_groups import work
from ringtrain._core.process_groups.context import current
from ringtrain._core.process_groups.process_sets import ProcessSet, group_of
from ringtrain._core.wire.objects import check_headers, is_wire_refusal, object_header, pack_object, unpack_object
from ringtrain.errors import ConfigurationError


def broadcast_object(
    value: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    allow_pickle: bool = False,
) -> Any:
    """Return the `value` of world rank `root_rank`; the values that other ranks pass are ignored.

    Supported types: None, booleans, numbers, strings, bytes, lists, tuples, sets, dicts, numpy arrays, scalars and
    dtypes, paths, dates and times, ranges, namespaces, dataclasses and named tuples. Other types need
    `allow_pickle=True` on every rank. Every rank then trusts the root, because unpickling runs code that the root
    chose. Raises ConfigurationError, on every rank, for an unsupported value, and the errors of all collectives.
    """
    group = group_of(process_set)
    ranks = group.ranks
    if root_rank not in ranks:
        raise ConfigurationError(f"root_rank is {root_rank}; expected one of the ranks {list(ranks)}")
    is_root = current().config.place.rank == root_rank
    message = pack_object(value, allow_pickle) if is_root else b""
    own = object_header(message, root_rank, allow_pickle)
    (rows,) = group.call(work.grouped_allgather([own], _object_of_collective(name, "length")))
    length = check_headers(rows, ranks, "broadcast_object")[ranks.index(root_rank)]
    buffer = np.frombuffer(message, np.uint8) if is_root else np.empty(length, np.uint8)
    received = group.call(work.broadcast(buffer, root_rank, _object_of_collective(name, "value")))
    return (
        value
        if is_root and not is_wire_refusal(message)
        else unpack_object(received.tobytes(), root_rank, allow_pickle)
    )


def allgather_object(
    value: Any, name: str | None = None, process_set: ProcessSet | None = None, *, allow_pickle: bool = False
) -> list[Any]:
    """Return a list with the `value` of every rank, in rank order.

    Supported types, `allow_pickle` and errors are the same as for `broadcast_object`.
    """
    group = group_of(process_set)
    ranks = group.ranks
    message = pack_object(value, allow_pickle)
    both: list[NDArray[Any]] = [object_header(message, 0, allow_pickle), np.frombuffer(message, np.uint8)]
    rows, data = group.call(work.grouped_allgather(both, _object_of_collective(name, "object")))
    lengths = check_headers(rows, ranks, "allgather_object")
    parts = np.split(data, np.cumsum(lengths)[:-1])
    return [unpack_object(part.tobytes(), rank, allow_pickle) for rank, part in zip(ranks, parts, strict=True)]


def _object_of_collective(name: str | None, what: str) -> str | None:
    return None if name is None else f"{name}.{what}"
