"""Queue of jobs that wait for all their pods to be placed, built from the statuses of all jobs."""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from ..observe.model import PodView
from ..placement.own_queue import NodeDevices, PlacementContender, PlacementContention
from ..plan.incomplete import next_try_time
from ..spec.base import parse_time
from ..spec.job import is_ours
from ..spec.template import worker_devices
from ..status.waiting import NAMES_SHOWN
from .queue import JobKey

# Number of waiting jobs to wake when devices are released; the next ones follow when one of these changes.
WOKEN = 8


class WaitingJobs:
    """Queue of this operator's jobs that wait for all their pods to be placed. It is not thread-safe.

    `nodes`: devices of the nodes, as read last.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.nodes: NodeDevices | None = None
        self._clock = clock
        self._order: list[PlacementContender] = []
        self._places: dict[JobKey, PlacementContender] = {}
        self._with_pods: set[JobKey] = set()
        self._keys: dict[str, JobKey] = {}
        self._used_by_job: dict[JobKey, dict[str, Counter[str]]] = {}
        self._freed_at: datetime | None = None

    def update(self, key: JobKey, job: Mapping[str, Any], pods: Iterable[PodView] = ()) -> tuple[JobKey, ...]:
        """Update the job's place in the queue from its status and `pods`. Return the jobs that must be reconciled
        because of the change.

        A job that is being deleted has no place in the queue. Neither has a job that runs on another cluster, whose
        status was written there.
        """
        is_here = "deletionTimestamp" not in job["metadata"] and is_ours(job["spec"].get("managedBy"))
        ledger = ((job.get("status") or {}).get("ledger") or {}) if is_here else {}
        now = _contender_of(key, job, ledger)
        if (now is not None or ledger.get("tooLarge")) and not ledger.get("queuedSince"):
            self._with_pods.add(key)
        else:
            self._with_pods.discard(key)
        return self._moved(key, now, _used_devices(job, pods))

    def forget(self, key: JobKey) -> tuple[JobKey, ...]:
        """Remove a deleted job from the queue. Return the jobs that must be reconciled because of that."""
        self._with_pods.discard(key)
        return self._moved(key, None, {})

    def contention(self) -> PlacementContention:
        """Return the waiting jobs in order, and the devices in use."""
        return PlacementContention(tuple(self._order), self._used() if self._order else {}, self._freed_at)

    def _moved(self, key: JobKey, now: PlacementContender | None, used: dict[str, Counter[str]]) -> tuple[JobKey, ...]:
        before, freed = self._places.get(key), self._record_used(key, used)
        if _is_same_entry(before, now) and not freed:
            return ()
        if before is not None:
            self._order.remove(before)
            del self._places[key]
        if now is not None:
            insort(self._order, now)
            self._places[key] = now
            self._keys[now.job] = key
        else:
            self._keys.pop(str(key), None)
        # Jobs with pods may have to release them, or may keep them. The first job may get its turn. Other jobs may try,
        # or have another job directly ahead.
        woken = {self._keys[one.job] for one in self._to_wake(before or now)}
        return tuple(sorted((self._with_pods | woken) - {key}))

    def _to_wake(self, moved: PlacementContender | None) -> Iterator[PlacementContender]:
        used, waiting = self._used(), [one for one in self._order if one.tries_at is not None]
        yield from self._order[:1]
        yield from islice((one for one in waiting if one.fits(self.nodes, used)), WOKEN)
        if moved is not None:
            yield from islice((one for one in waiting if moved < one and one.competes_with(moved)), NAMES_SHOWN)

    def _record_used(self, key: JobKey, used: dict[str, Counter[str]]) -> bool:
        """Record the devices that the job uses. Returns whether it now uses fewer of them on any node."""
        before = self._used_by_job.pop(key, {})
        if used:
            self._used_by_job[key] = used
        freed = any(devices - used.get(node, Counter()) for node, devices in before.items())
        if freed:
            self._freed_at = self._clock()
        return freed

    def _used(self) -> dict[str, Counter[str]]:
        total: dict[str, Counter[str]] = {}
        for used in self._used_by_job.values():
            for node, devices in used.items():
                total.setdefault(node, Counter()).update(devices)
        return total


def _contender_of(key: JobKey, job: Mapping[str, Any], ledger: Mapping[str, Any]) -> PlacementContender | None:
    since: datetime | None = parse_time(ledger.get("lineSince"))
    if since is None:
        return None
    return PlacementContender(
        since,
        str(job["metadata"].get("uid")),
        str(key),
        wants=ledger.get("lineWants") or {},
        workers=int(ledger.get("lineWorkers") or 0),
        tries_at=next_try_time(parse_time(ledger.get("queuedSince")), parse_time(ledger.get("waitsSince"))),
        reserves=bool(ledger.get("lineReserves")),
    )


def _is_same_entry(before: PlacementContender | None, now: PlacementContender | None) -> bool:
    """Return whether two queue entries are equal in all fields (`==` compares only the fields that determine the
    order)."""
    return (vars(before) if before else None) == (vars(now) if now else None)


def _used_devices(job: Mapping[str, Any], pods: Iterable[PodView]) -> dict[str, Counter[str]]:
    """Return the devices that the job's worker pods use on each node, including pods that terminate."""
    worker = job["spec"].get("worker") or {}
    amounts = worker_devices(worker.get("template") or {}, worker.get("devices") or {})
    found: dict[str, Counter[str]] = {}
    for pod in pods if amounts else ():
        if pod.id.role == "worker" and pod.place.node and pod.phase not in ("Succeeded", "Failed"):
            found.setdefault(pod.place.node, Counter()).update(amounts)
    return found
