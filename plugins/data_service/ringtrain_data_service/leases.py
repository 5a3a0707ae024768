"""Assignment of a rank's requests to data workers. Pure: no clock, no thread, no network.

A lease is a request that has not been answered. The rank stores its leases itself, and data workers have no state, so a
lost data worker only costs the time to send the request to another one.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

# One request is processed while the next one is being sent.
_AHEAD: Final = 2


@dataclass
class _DataWorkerLease:
    holders: set[Hashable] = field(default_factory=set)
    assigned_at: float = 0.0
    near: Hashable = None
    crashes: int = 0


@dataclass
class _DataWorkerLeaseHolder:
    slots: int
    held: set[int] = field(default_factory=set)

    @property
    def has_room(self) -> bool:
        return len(self.held) < _AHEAD * self.slots

    @property
    def load(self) -> float:
        return len(self.held) / self.slots


class DataWorkerLeases:
    """Assignment of each request to one data worker, and to another one if the first is lost, or late by `again_s`.

    A data worker has at most two requests for each of its loader processes. Every request is answered once: later
    answers are duplicates.
    """

    def __init__(self, again_s: float) -> None:
        self._again_s = again_s
        self._open: dict[int, _DataWorkerLease] = {}
        self._workers: dict[Hashable, _DataWorkerLeaseHolder] = {}

    @property
    def workers(self) -> int:
        """Number of connected data workers."""
        return len(self._workers)

    @property
    def keys(self) -> frozenset[int]:
        """Requests that are not answered."""
        return frozenset(self._open)

    def add(self, key: int, near: Hashable = None) -> None:
        """Add a request, preferably for the data worker `near`."""
        self._open[key] = _DataWorkerLease(near=near)

    def join(self, worker: Hashable, slots: int) -> None:
        """Add a data worker with `slots` loader processes."""
        self._workers[worker] = _DataWorkerLeaseHolder(max(1, slots))

    def leave(self, worker: Hashable) -> list[int]:
        """Remove a lost data worker; return the requests that no other data worker has."""
        gone = self._workers.pop(worker, _DataWorkerLeaseHolder(1))
        return [key for key in sorted(gone.held) if self._release(worker, key)]

    def answered(self, key: int) -> bool:
        """Record an answer; return False if the request was answered before, or does not exist."""
        lease = self._open.pop(key, None)
        if lease is None:
            return False
        for worker in lease.holders:
            if worker in self._workers:
                self._workers[worker].held.discard(key)
        return True

    def crashed(self, worker: Hashable, key: int) -> int:
        """Record the crash of a loader process on a request, which may be assigned again. Return the request's number
        of crashes, or 0 if it has been answered in the meantime."""
        if worker in self._workers:
            self._workers[worker].held.discard(key)
        if key not in self._open:
            return 0
        self._release(worker, key)
        self._open[key].crashes += 1
        return self._open[key].crashes

    def assign(self, now: float) -> list[tuple[Hashable, int]]:
        """Return new assignments (data worker, request): unassigned requests first, in order, then late ones."""
        given = []
        free = [key for key, lease in self._open.items() if not lease.holders]
        late = [key for key, lease in self._open.items() if lease.holders and now - lease.assigned_at >= self._again_s]
        for key in [*sorted(free), *sorted(late)]:
            lease = self._open[key]
            worker = self._choose(lease)
            if worker is None:
                continue
            lease.holders.add(worker)
            lease.assigned_at = now
            self._workers[worker].held.add(key)
            given.append((worker, key))
        return given

    def _choose(self, lease: _DataWorkerLease) -> Hashable:
        near = self._workers.get(lease.near)
        if near is not None and near.has_room and lease.near not in lease.holders:
            return lease.near
        able = [name for name, one in self._workers.items() if one.has_room and name not in lease.holders]
        return min(able, key=lambda name: self._workers[name].load, default=None)

    def _release(self, worker: Hashable, key: int) -> bool:
        lease = self._open.get(key)
        if lease is None:
            return False
        lease.holders.discard(worker)
        return not lease.holders
