"""Broadcast and allgather of Python objects by named collectives, for the framework adapters."""

from typing import Any

import numpy as np

from ringtrain._core.negotiation.collective import NamedCollective
from ringtrain._core.negotiation.queues import name_for, queue_of
from ringtrain._core.process_groups.process_sets import ProcessSet
from ringtrain._core.process_groups.tensors import Array
from ringtrain._core.wire.objects import (
    check_headers,
    decode_object,
    encode_object,
    is_wire_refusal,
    object_header,
    pack_object,
    unpack_object,
)
from ringtrain._core.wire.values import ForeignWireValues
from ringtrain.errors import ConfigurationError

__all__ = ["allgather_object", "broadcast_object", "decode_object", "encode_object"]


def broadcast_object(
    value: Any,
    root: int,
    name: str | None,
    process_set: ProcessSet,
    allow_pickle: bool = False,
    foreign: ForeignWireValues | None = None,
) -> Any:
    """Return the `value` of world rank `root` on every rank of the process set.

    `allow_pickle`: whether to pickle a value that is not plain data. `foreign`: functions that encode a framework's own
    types. Raises ConfigurationError with the reason, on every rank at once, if the root's object can't be sent.
    """
    group = queue_of(process_set)
    if root not in group.ranks:
        raise ConfigurationError(f"broadcast_object: root_rank is {root}; expected one of {list(group.ranks)}")
    name = name_for("broadcast_object", name, process_set)
    is_root = group.rank == root
    message = pack_object(value, allow_pickle, foreign) if is_root else b""
    header = object_header(message, root, allow_pickle)
    (rows,) = NamedCollective.allgather(process_set, f"{name}.length").run([header])
    length = check_headers(rows, group.ranks, "broadcast_object")[group.ranks.index(root)]
    data = np.frombuffer(message, np.uint8) if is_root else np.empty(length, np.uint8)
    (received,) = NamedCollective.broadcast(root, process_set, f"{name}.data").run([data])
    if is_root and not is_wire_refusal(message):
        return value
    return unpack_object(received.tobytes(), root, allow_pickle, foreign)


def allgather_object(
    value: Any,
    name: str | None,
    process_set: ProcessSet,
    allow_pickle: bool = False,
    foreign: ForeignWireValues | None = None,
) -> list[Any]:
    """Return the `value` of every rank, in rank order. Raises ConfigurationError if a rank's object can't be sent.

    `allow_pickle`, `foreign`: see `broadcast_object`.
    """
    group = queue_of(process_set)
    name = name_for("allgather_object", name, process_set)
    message = pack_object(value, allow_pickle, foreign)
    both: list[Array] = [object_header(message, 0, allow_pickle), np.frombuffer(message, np.uint8)]
    rows, data = NamedCollective.allgather(process_set, f"{name}.data").run(both)
    lengths = check_headers(rows, group.ranks, "allgather_object")
    parts = np.split(data, np.cumsum(lengths)[:-1])
    return [
        unpack_object(part.tobytes(), rank, allow_pickle, foreign)
        for rank, part in zip(group.ranks, parts, strict=True)
    ]
