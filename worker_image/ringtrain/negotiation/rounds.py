"""One small exchange among the ranks of a set: each says a few bytes, and gets what all say."""

import struct
from typing import Final

import numpy as np

from ringtrain.communicators.base import Communicator
from ringtrain.wire.signature import Signature

# For a thousand names that were agreed on before. Of fixed length, because ranks of one pod exchange that through
# shared memory. More, as in the first step, takes a second exchange.
SLOT_BYTES: Final = 4096
_LENGTH: Final = struct.Struct("<Q")
_AGREEMENT: Final = Signature("agreement")


def exchange(communicator: Communicator, message: bytes) -> list[bytes]:
    """Return every rank's `message`, by position."""
    size, position = len(communicator.ranks), communicator.position
    slots = np.zeros((size, SLOT_BYTES), np.uint8)
    head = _LENGTH.pack(len(message)) + message[: SLOT_BYTES - _LENGTH.size]
    slots[position, : len(head)] = np.frombuffer(head, np.uint8)
    communicator.all_gather(_AGREEMENT, slots.reshape(-1), tuple(SLOT_BYTES * index for index in range(size + 1)))
    received = [slot.tobytes() for slot in slots]
    lengths = [_LENGTH.unpack_from(slot)[0] for slot in received]
    if max(lengths) > SLOT_BYTES - _LENGTH.size:  # for every rank alike
        whole = np.frombuffer(message, np.uint8)
        return [part.tobytes() for part in communicator.all_gather_parts(_AGREEMENT, whole)]
    return [slot[_LENGTH.size :][:length] for slot, length in zip(received, lengths, strict=True)]
