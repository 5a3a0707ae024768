"""The group as threads of one process: what the ring does, without bytes on a wire."""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringtrain.negotiation.group import Array, rows_of
from ringtrain.reduction.arithmetic import reduce_arrays


class _Meeting:
    """All members bring one thing each and leave with everyone's."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self._barrier = threading.Barrier(size)
        self._brought: list[Any] = [None] * size
        self._timeout_s = timeout_s

    def bring(self, index: int, thing: Any) -> list[Any]:
        self._brought[index] = thing
        self._barrier.wait(self._timeout_s)
        everyone = list(self._brought)
        self._barrier.wait(self._timeout_s)
        return everyone


@dataclass(frozen=True)
class MemoryGroup:
    """One member of a group of threads."""

    ranks: tuple[int, ...]
    rank: int
    _meeting: _Meeting

    def exchange(self, message: bytes) -> list[bytes]:
        return self._all(message)

    def allreduce(self, arrays: Sequence[Array], op: str) -> list[Array]:
        everyone = self._all([array.copy() for array in arrays])
        return [reduce_arrays(parts, op) for parts in zip(*everyone, strict=True)]

    def allgather(self, array: Array, rows: int) -> Array:
        return np.concatenate(self._all(array.copy())).reshape(rows, *array.shape[1:])

    def broadcast(self, array: Array, root: int) -> Array:
        everyone: list[Array] = self._all(array.copy())
        return everyone[self.ranks.index(root)].copy()

    def alltoall(self, array: Array, splits: Sequence[int]) -> tuple[Array, list[int]]:
        cuts = np.cumsum([0, *splits])
        parts = [array[start:stop].copy() for start, stop in itertools.pairwise(cuts)]
        mine = [sent[self._index] for sent in self._all(parts)]
        return np.concatenate(mine), [len(part) for part in mine]

    def reducescatter(self, array: Array, op: str) -> Array:
        rows = rows_of(len(array), len(self.ranks))
        start = sum(rows[: self._index])
        reduced = reduce_arrays(self._all(array.copy()), op)
        return reduced[start : start + rows[self._index]].copy()

    @property
    def _index(self) -> int:
        return self.ranks.index(self.rank)

    def _all(self, thing: Any) -> list[Any]:
        return self._meeting.bring(self._index, thing)


def memory_groups(ranks: Sequence[int], timeout_s: float = 60.0) -> list[MemoryGroup]:
    """Return a member for each of `ranks`; each is to be used by one thread at a time."""
    meeting = _Meeting(len(ranks), timeout_s)
    return [MemoryGroup(tuple(ranks), rank, meeting) for rank in ranks]


def on_threads(groups: Sequence[MemoryGroup], function: Callable[[MemoryGroup], Any]) -> list[Any]:
    """Return what `function(group)` returned for each member, each on a thread of its own; raise the first
    error.
    """
    results: list[Any] = [None] * len(groups)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = function(groups[index])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
