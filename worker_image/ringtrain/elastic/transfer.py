"""Exchange of the state's values between the ranks of a new world."""

from typing import Any

import numpy as np

from ringtrain._core.process_groups.context import current
from ringtrain._core.wire.objects import is_wire_refusal, pack_object, unpack_object
from ringtrain._core.wire.signature import WireSignature
from ringtrain._core.wire.values import ForeignWireValues, encode_value
from ringtrain.errors import ConfigurationError


def broadcast(value: Any, root: int, what: str, foreign: ForeignWireValues | None = None) -> Any:
    """Return `value` of rank `root` on every rank. Rank `root` gets its own object back. Collective.

    `what`: name of the value, for messages of waiting ranks. `foreign`: a framework's additions to plain data. Raises
    ConfigurationError on every rank for a value that can't be sent.
    """
    group = current().group()
    is_root = group.rank == root
    message = pack_object(value, foreign=foreign) if is_root else b""
    data = np.frombuffer(message, np.uint8)
    parts = group.call(lambda ring: ring.all_gather_parts(WireSignature(f"elastic state {what}"), data))
    if is_root and not is_wire_refusal(message):
        return value
    return unpack_object(parts[root].tobytes(), root, foreign=foreign)


def check_sendable(value: Any, what: str, foreign: ForeignWireValues | None = None) -> None:
    """Raise ConfigurationError if `value` cannot be sent to other ranks."""
    try:
        encode_value(value, foreign)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"State: {what}: {error}. Pass numbers, strings, containers and arrays, or an object with "
            "state_dict() and load_state_dict()"
        ) from error
