"""The ranks of a host optimizer that works while other collectives go on.

`step(wait=False)` returns before the last weights are there, and the training script may call any collective in
the meantime. A communicator and a thread of its own keep the two from mixing their orders.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from ringtrain.communicators.base import Communicator, Updater
from ringtrain.communicators.choose import is_networked
from ringtrain.kernels.update import ChunkUpdate
from ringtrain.negotiation.process_sets import ProcessSet
from ringtrain.negotiation.world import new_communicator
from ringtrain.process_groups.group import Flat, Pending, Received
from ringtrain.reduction.ops import Op
from ringtrain.wire.signature import Signature
from ringtrain.wire.values import decode_value, encode_value

T = TypeVar("T")


@dataclass(frozen=True)
class _Pending(Generic[T]):
    future: "Future[T]"

    def wait(self) -> T:
        return self.future.result()


class HostGroup:
    """A process set, as `ringtrain.optim` needs it. Rank and root count within the set."""

    def __init__(self, communicator: Communicator, lane: "HostGroup | None" = None) -> None:
        """`lane`: what `beside` returns."""
        self._communicator = communicator
        self._lane = lane
        self.rank = communicator.position
        self.size = len(communicator.ranks)
        self._thread = ThreadPoolExecutor(1, "ringtrain-host-optimizer")

    def allocate(self, length: int, dtype: Any) -> Flat:
        memory: list[Flat] = []
        nbytes = length * np.dtype(dtype).itemsize
        self._begin(lambda ring: memory.append(ring.allocate(nbytes))).wait()
        return memory[0].view(dtype)

    def reduce_scatter(self, buffer: Flat, bounds: Sequence[int], average: bool) -> Pending:
        chunk = buffer[bounds[self.rank] : bounds[self.rank + 1]]
        op = Op.Average if average else Op.Sum
        what = Signature("reduce_scatter", op=op.value)
        return self._begin(lambda ring: ring.reduce_scatter(what, buffer, tuple(bounds), chunk, op))

    def all_gather(self, buffer: Flat, bounds: Sequence[int]) -> Pending:
        return self._begin(lambda ring: ring.all_gather(Signature("all_gather"), buffer, tuple(bounds)))

    def beside(self) -> "HostGroup | None":
        return self._lane

    def all_to_all(self, parts: Sequence[Flat]) -> Received:
        return self._begin(lambda ring: ring.all_to_all(Signature("all_to_all"), parts))

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        return self._begin(lambda ring: isinstance(ring, Updater) and ring.can_update(gradients, weights)).wait()

    def update(self, gradients: Flat, bounds: Sequence[int], average: bool, change: ChunkUpdate) -> None:
        op = Op.Average if average else Op.Sum
        what = Signature("update", op=op.value)
        self._begin(lambda ring: _updater(ring).update(what, gradients, tuple(bounds), op, change)).wait()

    def finish_updates(self) -> bool:
        return self._begin(lambda ring: _updater(ring).finish_updates()).wait()

    def broadcast(self, buffer: Flat) -> None:
        self._begin(lambda ring: ring.broadcast(Signature("broadcast", root=0), buffer, 0)).wait()

    def broadcast_object(self, value: Any) -> Any:
        return self.allgather_object(value)[0]

    def allgather_object(self, value: Any) -> list[Any]:
        everyone: list[Any] = []
        data = np.frombuffer(encode_value(value), np.uint8)
        self._begin(lambda ring: everyone.extend(ring.all_gather_parts(Signature("value"), data))).wait()
        return [decode_value(part.tobytes()) for part in everyone]

    def close(self) -> None:
        """Take no more work."""
        self._thread.shutdown(wait=False)
        if self._lane is not None:
            self._lane.close()

    def _begin(self, work: Callable[[Communicator], T]) -> _Pending[T]:
        return _Pending(self._thread.submit(work, self._communicator))


def _updater(communicator: Communicator) -> Updater:
    assert isinstance(communicator, Updater), "ask can_update first"
    return communicator


def host_group(process_set: ProcessSet) -> HostGroup:
    """Make the group of a host optimizer. Every rank of the set makes the same ones in the same order."""
    communicator = new_communicator(process_set)
    lane = HostGroup(new_communicator(process_set)) if is_networked(communicator) else None
    return HostGroup(communicator, lane)
