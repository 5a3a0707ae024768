"""State between the members of a new world: what all say, and what one gives to all."""

from __future__ import annotations

from typing import Any

import numpy as np

from ringtrain.errors import ConfigurationError
from ringtrain.process_groups.context import current
from ringtrain.wire.signature import Signature
from ringtrain.wire.values import Foreign, decode_value, encode_value


def broadcast(value: Any, root: int, what: str, foreign: Foreign | None = None) -> Any:
    """Return `value` of rank `root` on every rank; the root gets its own object back. Collective.

    `foreign`: what a framework adds to plain data. Raises ConfigurationError on every rank for a value that can't
    be sent; `what` names it.
    """
    group = current().group()
    is_root = group.rank == root
    data = np.frombuffer(_encoded(value, what, foreign), np.uint8) if is_root else np.empty(0, np.uint8)
    parts = group.call(lambda ring: ring.all_gather_parts(Signature(f"elastic state {what}"), data))
    received = decode_value(parts[root].tobytes(), foreign)
    if "refused" in received:
        raise ConfigurationError(f"rank {root}: {received['refused']}")
    return value if is_root else received["value"]


def _encoded(value: Any, what: str, foreign: Foreign | None) -> bytes:
    try:
        return encode_value({"value": value}, foreign)
    except ConfigurationError as error:
        return encode_value({"refused": f"{what}: {error}"})


def check_sendable(value: Any, what: str, foreign: Foreign | None = None) -> None:
    """Raises ConfigurationError for a value that other ranks could not get."""
    try:
        encode_value(value, foreign)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"State: {what}: {error}. Give the state numbers, texts, containers and arrays, or an object with "
            "state_dict() and load_state_dict()"
        ) from error
