"""A `CollectiveGroup` of `ringtrain._core.process_groups` on threads of one process: the optimizer's seam.

    def rank_twice(group: MemoryGroup) -> int:
        return sum(group.allgather_object(group.rank, "rank"))

    assert run_threads(rank_twice, 3) == [3, 3, 3]

It keeps the ring's promise: every element is the left fold over ranks in rank order, half types in float32.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ringtrain._core.kernels.update import ChunkUpdate
from ringtrain._core.process_groups.group import Flat, PendingCollective
from ringtrain._core.reduction.ops import ReduceOp
from ringtrain.errors import PeerLost
from support.deadlines import patient

DEADLINE_S = patient(60.0)
T = TypeVar("T")


@dataclass
class Collective:
    """One collective: what each rank contributed; `done` when all have."""

    contributed: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: Exception | None = None

    def wait(self) -> Any:
        assert self.done.wait(DEADLINE_S), (
            f"only ranks {sorted(self.contributed)} came to {list(self.contributed.values())}"
        )
        if self.error is not None:
            raise self.error
        return self.result


@dataclass
class Table:
    """Shared state of the ranks of one memory group: their collectives by number."""

    size: int
    collectives: dict[int, Collective] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    broken: Exception | None = None

    def give_up(self, rank: int, error: Exception) -> None:
        """Let nobody wait for a rank that has failed."""
        with self.lock:
            self.broken = self.broken or PeerLost(rank, f"rank {rank} failed: {error!r}")
            for collective in self.collectives.values():
                if not collective.done.is_set():
                    collective.error = self.broken
                    collective.done.set()


class MemoryGroup:
    """One rank's end. `calls`: the kinds of the collectives that this rank has begun, in order."""

    def __init__(self, table: Table, rank: int) -> None:
        self._table = table
        self.rank = rank
        self.size = table.size
        self.calls: list[str] = []

    def allocate(self, length: int, dtype: Any) -> Flat:
        return np.zeros(length, dtype)

    def all_reduce(self, buffer: Flat, op: ReduceOp = ReduceOp.Sum) -> PendingCollective:
        return self._join("all_reduce", buffer, None, op)

    def reduce_scatter(self, buffer: Flat, bounds: Sequence[int], op: ReduceOp = ReduceOp.Sum) -> PendingCollective:
        return self._join("reduce_scatter", buffer, tuple(bounds), op)

    def all_gather(self, buffer: Flat, bounds: Sequence[int]) -> PendingCollective:
        return self._join("all_gather", buffer, tuple(bounds), None)

    def parallel_group(self) -> None:
        return None

    def all_to_all(self, parts: Sequence[Flat], origins: Sequence[int] | None = None) -> PendingCollective:
        collective = self._join("object", list(parts), None, None)
        return _Column(collective, self.rank)

    def send_receive(self, source: Flat, to: int, target: Flat, origin: int) -> PendingCollective:
        collective = self._join("object", (to, source), None, None)
        return _Received(collective, self.rank, target)

    def memory_of(self, rank: int, buffer: Flat) -> Flat | None:
        return None

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        return False

    def update(self, gradients: Flat, bounds: Sequence[int], op: ReduceOp, change: ChunkUpdate) -> None:
        raise AssertionError("can_update is False")

    def finish_updates(self) -> bool:
        raise AssertionError("can_update is False")

    def broadcast(self, buffer: Flat) -> None:
        self._join("broadcast", buffer, None, None).wait()

    def broadcast_object(self, value: Any, what: str) -> Any:
        return self.allgather_object(value, what)[0]

    def allgather_object(self, value: Any, what: str) -> list[Any]:
        return self.gather_objects(value, what).wait()

    def gather_objects(self, value: Any, what: str) -> PendingCollective:
        return self._join("object", value, None, None)

    def _join(self, kind: str, payload: Any, bounds: tuple[int, ...] | None, op: ReduceOp | None) -> Collective:
        with self._table.lock:
            if self._table.broken is not None:
                raise self._table.broken
            collective = self._table.collectives.setdefault(len(self.calls), Collective())
            self.calls.append(kind)
            collective.contributed[self.rank] = (kind, bounds, op, payload)
            if len(collective.contributed) == self.size:
                try:
                    collective.result = _carry_out([collective.contributed[rank] for rank in range(self.size)])
                except Exception as error:
                    collective.error = error
                collective.done.set()
        return collective


@dataclass
class _Column:
    collective: Collective
    rank: int

    def wait(self) -> list[Flat]:
        return [parts[self.rank] for parts in self.collective.wait()]


@dataclass
class _Received:
    collective: Collective
    rank: int
    target: Flat

    def wait(self) -> None:
        (self.target[...],) = [source for to, source in self.collective.wait() if to == self.rank]


class OneOfTwo(MemoryGroup):
    """Rank 0 of a world of two whose rank 1 agrees with everything; for tests that override a collective."""

    def __init__(self) -> None:
        super().__init__(Table(1), 0)
        self.size = 2

    def broadcast(self, buffer: Flat) -> None:
        """Rank 0's values are here already."""

    def gather_objects(self, value: Any, what: str) -> PendingCollective:
        ended = Collective(result=[value, value])
        ended.done.set()
        return ended


def _carry_out(contributed: list[tuple[Any, ...]]) -> Any:
    kind, bounds, op, _ = contributed[0]
    described = [entry[:3] for entry in contributed]
    assert all(entry == described[0] for entry in described), f"ranks called different collectives: {described}"
    payloads = [entry[3] for entry in contributed]
    if kind == "object":
        return payloads
    if kind == "broadcast":
        for buffer in payloads[1:]:
            buffer[:] = payloads[0]
    elif kind == "all_reduce":
        assert op is ReduceOp.Max, op
        total = np.maximum.reduce(payloads)
        for buffer in payloads:
            buffer[:] = total
    elif kind == "all_gather":
        for r in range(len(payloads)):
            for buffer in payloads:
                buffer[bounds[r] : bounds[r + 1]] = payloads[r][bounds[r] : bounds[r + 1]]
    else:
        total = _folded(payloads, op is ReduceOp.Average)
        for r, buffer in enumerate(payloads):
            # What the contract leaves open is made useless, so that no test can lean on it.
            buffer[:] = np.nan
            buffer[bounds[r] : bounds[r + 1]] = total[bounds[r] : bounds[r + 1]]
    return None


def _folded(payloads: list[Flat], average: bool) -> Flat:
    wide = np.float32 if payloads[0].dtype.itemsize == 2 else payloads[0].dtype
    total = payloads[0].astype(wide)
    for payload in payloads[1:]:
        total = total + payload.astype(wide)
    if average:
        total = total / total.dtype.type(len(payloads))
    return total.astype(payloads[0].dtype)


def run_threads(function: Callable[..., T], size: int, *args: Any) -> list[T]:
    """Run `function(group, *args)` on `size` threads, one a rank; return what they returned, by rank."""
    table = Table(size)

    def run(rank: int) -> T:
        try:
            return function(MemoryGroup(table, rank), *args)
        except Exception as error:
            table.give_up(rank, error)
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
        errors = [error for future in futures if (error := future.exception(DEADLINE_S))]
    # The error of the rank that failed first, not of one that waited for it.
    for error in sorted(errors, key=lambda error: isinstance(error, PeerLost)):
        raise error
    return [future.result() for future in futures]
