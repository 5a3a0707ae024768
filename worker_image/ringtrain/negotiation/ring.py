"""The group over the ring. The only module of this package that knows how the ring is called.

Each process set gets a communicator of its own here, beside the one that `ringtrain.allreduce` and the host
optimizer use: the queue's order and theirs must not be mixed.
"""

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ringtrain.communicators.base import Communicator
from ringtrain.negotiation.group import Array, as_array
from ringtrain.process_groups.context import PRIVATE_SETS, current
from ringtrain.reduction.cuts import even_bounds
from ringtrain.reduction.ops import Op
from ringtrain.wire.dtypes import CODES
from ringtrain.wire.signature import Signature

# What the ring does not carry is reduced in a type that it carries, and that holds sums of the narrow ones.
_WIDER = {
    "int8": "int32",
    "int16": "int32",
    "uint16": "int32",
    "uint32": "int64",
    "uint8": "int32",
    "bool": "int32",
}

# Room for what a rank says in a round: a thousand names that were agreed on before. Of fixed length, because ranks
# of one pod exchange that through shared memory. More, as in the first step, takes a second exchange.
SLOT_BYTES: Final = 4096
_LENGTH: Final = struct.Struct("<Q")
_AGREEMENT: Final = Signature("agreement")

# Communicators that one process set can have: one for its queue, one for each host optimizer made on it.
PER_SET = 512


class RingGroup:
    """A process set's ranks, exchanging over the ring on the calling thread."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self.ranks = communicator.ranks
        self.rank = communicator.ranks[communicator.position]

    def exchange(self, message: bytes) -> list[bytes]:
        size, place = len(self.ranks), self._communicator.position
        slots = np.zeros((size, SLOT_BYTES), np.uint8)
        fits = message[: SLOT_BYTES - _LENGTH.size]
        slots[place, : _LENGTH.size + len(fits)] = as_array(_LENGTH.pack(len(message)) + fits)
        bounds = tuple(SLOT_BYTES * index for index in range(size + 1))
        self._communicator.all_gather(_AGREEMENT, slots.reshape(-1), bounds)
        heard = [slot.tobytes() for slot in slots]
        lengths = [_LENGTH.unpack_from(slot)[0] for slot in heard]
        if max(lengths) > SLOT_BYTES - _LENGTH.size:  # for every rank alike
            return [part.tobytes() for part in self._communicator.all_gather_parts(_AGREEMENT, as_array(message))]
        return [slot[_LENGTH.size :][:length] for slot, length in zip(heard, lengths, strict=True)]

    def allreduce(self, arrays: Sequence[Array], op: str) -> list[Array]:
        results: list[Array] = [np.empty(0)] * len(arrays)
        for dtype in dict.fromkeys(array.dtype for array in arrays):
            places = [index for index, array in enumerate(arrays) if array.dtype == dtype]
            for index, result in zip(places, self._reduced([arrays[i] for i in places], op), strict=True):
                results[index] = result
        return results

    def allgather(self, array: Array, rows: int) -> Array:
        parts = self._communicator.all_gather_parts(Signature("allgather"), _flat(array).view(np.uint8))
        return np.concatenate(parts).view(array.dtype).reshape(rows, *array.shape[1:])

    def broadcast(self, array: Array, root: int) -> Array:
        buffer = array.copy()
        self._communicator.broadcast(
            Signature("broadcast", root=root), _flat(buffer).view(np.uint8), self.ranks.index(root)
        )
        return buffer

    def alltoall(self, array: Array, splits: Sequence[int]) -> tuple[Array, list[int]]:
        cuts = np.cumsum([0, *splits])
        parts = [_flat(array[start:stop]).view(np.uint8) for start, stop in itertools.pairwise(cuts)]
        received = self._communicator.all_to_all(Signature("alltoall"), parts)
        row_bytes = max(1, int(np.prod(array.shape[1:], dtype=np.int64)) * array.itemsize)
        rows = [len(part) // row_bytes for part in received]
        return np.concatenate(received).view(array.dtype).reshape(sum(rows), *array.shape[1:]), rows

    def reducescatter(self, array: Array, op: str) -> Array:
        own_op, wide = _carried(array, op)
        row = int(np.prod(array.shape[1:], dtype=np.int64))
        bounds = tuple(bound * row for bound in even_bounds(len(array), len(self.ranks)))
        start, stop = bounds[self._communicator.position : self._communicator.position + 2]
        target = np.empty(stop - start, wide.dtype)
        self._communicator.reduce_scatter(
            Signature("reducescatter", op=op), _flat(wide), bounds, target, Op(own_op)
        )
        return self._narrowed(target, op, array.dtype).reshape(-1, *array.shape[1:])

    def _reduced(self, arrays: Sequence[Array], op: str) -> list[Array]:
        """Reduce arrays of one dtype in one collective."""
        own_op, _ = _carried(arrays[0], op)
        flats = [_flat(_carried(array, op)[1]) for array in arrays]
        source = flats[0] if len(flats) == 1 else np.concatenate(flats)
        target = np.empty_like(source)
        self._communicator.all_reduce(Signature("allreduce", op=op), source, target, Op(own_op))
        reduced = self._narrowed(target, op, arrays[0].dtype)
        cuts = np.cumsum([0, *(array.size for array in arrays)])
        bounds = zip(arrays, cuts, cuts[1:], strict=False)
        return [reduced[start:stop].reshape(array.shape) for array, start, stop in bounds]

    def _narrowed(self, flat: Array, op: str, dtype: np.dtype[Any]) -> Array:
        """Divide a sum of integers, rounding towards zero as a cast does, and return to the caller's dtype."""
        if op == "Average" and dtype.kind in "iub":
            flat = np.trunc(flat / len(self.ranks))
        return flat.astype(dtype, copy=False)


def private_communicator(ranks: Sequence[int], process_set: int, index: int) -> Communicator:
    """Make communicator number `index` of a process set. Every member makes the same."""
    number = PRIVATE_SETS + process_set * PER_SET + index
    session = current()
    return session.communicator(session.add_process_set(tuple(ranks), number))


def give_up_communicators(process_set: int, count: int) -> None:
    """Close the first `count` communicators of a process set; nothing may be under way on them."""
    for index in range(count):
        current().remove_process_set(PRIVATE_SETS + process_set * PER_SET + index)


def ring_timeout_s() -> float:
    """Return how long a rank waits for one that does not answer: RINGTRAIN_TIMEOUT."""
    return current().config.timeout_s


def stall_timeout_s() -> float:
    """Return how long a rank waits for one that answers and does not submit: RINGTRAIN_STALL_TIMEOUT."""
    return current().config.stall_timeout_s


def describe_queue(process_set: int, details: Callable[[], str]) -> None:
    """Have `details` name what the queue of a process set has in flight, for messages of ranks that wait."""
    current().describe_process_set(PRIVATE_SETS + process_set * PER_SET, details)


def _flat(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1)


def _carried(array: Array, op: str) -> tuple[str, Array]:
    """Return the op and the array that the ring is asked for: averages of integers are sums, divided
    afterwards.
    """
    integer = array.dtype.kind in "iub"
    own_op = "Sum" if op == "Average" and integer else op
    overflows = op == "Average" and array.dtype.name in ("uint8", "bool")
    if array.dtype.name in CODES and not overflows:
        return own_op, array
    return own_op, array.astype(_WIDER[array.dtype.name])
