"""Assignment of a rank's requests to data workers, as pure functions of events and times.

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
    """A rank's unanswered requests, each with its data worker. Requests of a lost or late (`again_s`) worker are
    assigned to another one.

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
        """Keys of the unanswered requests."""
        return frozenset(self._open)

    def add(self, key: int, near: Hashable = None) -> None:
        """Add a request, preferably for the data worker `near`."""
        self._open[key] = _DataWorkerLease(near=near)

    def join(self, worker: Hashable, slots: int) -> None:
        """Add a data worker with `slots` loader processes."""
        self._workers[worker] = _DataWorkerLeaseHolder(max(1, slots))

    def leave(self, worker: Hashable) -> list[int]:
        """Remove a lost data worker. Return the keys of its requests that no other data worker processes."""
        gone = self._workers.pop(worker, _DataWorkerLeaseHolder(1))
        return [key for key in sorted(gone.held) if self._release(worker, key)]

    def answered(self, key: int) -> bool:
        """Record the answer to request `key`. Return False for a duplicate answer or an unknown request."""
        lease = self._open.pop(key, None)
        if lease is None:
            return False
        for worker in lease.holders:
            if worker in self._workers:
                self._workers[worker].held.discard(key)
        return True

    def crashed(self, worker: Hashable, key: int) -> int:
        """Record that a loader process crashed on request `key`, so that `assign` may assign it again. Return how often
        the request has crashed loaders, or 0 if it has been answered meanwhile."""
        if worker in self._workers:
            self._workers[worker].held.discard(key)
        if key not in self._open:
            return 0
        self._release(worker, key)
        self._open[key].crashes += 1
        return self._open[key].crashes

    def assign(self, now: float) -> list[tuple[Hashable, int]]:
        """Assign requests: first unassigned ones in order, then late ones. Return new pairs (data worker, key)."""
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
