"""Jobs that wait to be placed whole, in their order: what their statuses say, in one place."""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from ..observe.model import PodView
from ..placement.line import NodeDevices, PlacementContender, PlacementContention
from ..plan.incomplete import tries_at
from ..spec.base import parse_time
from ..spec.job import is_ours
from ..spec.template import worker_devices
from ..status.waiting import NAMES_SHOWN
from .queue import JobKey

# Of those that wait without pods and would fit, so many look at what was freed; the next when one of them moves.
WOKEN = 8


class ClusterWaitingLine:
    """The jobs of one operator that stand in line. All methods belong to one event loop.

    `nodes`: what nodes have of devices, as it was read last.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.nodes: NodeDevices | None = None
        self._clock = clock
        self._order: list[PlacementContender] = []
        self._places: dict[JobKey, PlacementContender] = {}
        self._with_pods: set[JobKey] = set()
        self._keys: dict[str, JobKey] = {}
        self._held: dict[JobKey, dict[str, Counter[str]]] = {}
        self._freed_at: datetime | None = None

    def note(self, key: JobKey, job: Mapping[str, Any], pods: Iterable[PodView] = ()) -> tuple[JobKey, ...]:
        """Take in what the job's status says now, and where its `pods` are. Returns the other jobs for which that
        changes something.

        A job that is being deleted never has its turn; the status of one that runs elsewhere was written there.
        """
        is_here = "deletionTimestamp" not in job["metadata"] and is_ours(job["spec"].get("managedBy"))
        ledger = ((job.get("status") or {}).get("ledger") or {}) if is_here else {}
        now = _line_contender(key, job, ledger)
        if (now is not None or ledger.get("tooLarge")) and not ledger.get("queuedSince"):
            self._with_pods.add(key)
        else:
            self._with_pods.discard(key)
        return self._moved(key, now, _held_devices(job, pods))

    def forget(self, key: JobKey) -> tuple[JobKey, ...]:
        """The job is gone. Returns the other jobs for which that changes something."""
        self._with_pods.discard(key)
        return self._moved(key, None, {})

    def contention(self) -> PlacementContention:
        """Who waits, and what is in use meanwhile."""
        return PlacementContention(tuple(self._order), self._used() if self._order else {}, self._freed_at)

    def _moved(self, key: JobKey, now: PlacementContender | None, held: dict[str, Counter[str]]) -> tuple[JobKey, ...]:
        before, freed = self._places.get(key), self._hold(key, held)
        if _same_line(before, now) and not freed:
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
        # Whoever holds places may have to give way, or may keep them; the first may have its turn; some of the
        # others may try, or have another directly ahead.
        woken = {self._keys[one.job] for one in self._to_wake(before or now)}
        return tuple(sorted((self._with_pods | woken) - {key}))

    def _to_wake(self, moved: PlacementContender | None) -> Iterator[PlacementContender]:
        used, waiting = self._used(), [one for one in self._order if one.tries_at is not None]
        yield from self._order[:1]
        yield from islice((one for one in waiting if one.fits(self.nodes, used)), WOKEN)
        if moved is not None:
            yield from islice((one for one in waiting if moved < one and one.competes_with(moved)), NAMES_SHOWN)

    def _hold(self, key: JobKey, held: dict[str, Counter[str]]) -> bool:
        """Note what the job has of nodes now; whether it has less of one than before."""
        before = self._held.pop(key, {})
        if held:
            self._held[key] = held
        freed = any(devices - held.get(node, Counter()) for node, devices in before.items())
        if freed:
            self._freed_at = self._clock()
        return freed

    def _used(self) -> dict[str, Counter[str]]:
        used: dict[str, Counter[str]] = {}
        for held in self._held.values():
            for node, devices in held.items():
                used.setdefault(node, Counter()).update(devices)
        return used


def _line_contender(key: JobKey, job: Mapping[str, Any], ledger: Mapping[str, Any]) -> PlacementContender | None:
    since: datetime | None = parse_time(ledger.get("lineSince"))
    if since is None:
        return None
    return PlacementContender(
        since,
        str(job["metadata"].get("uid")),
        str(key),
        wants=ledger.get("lineWants") or {},
        workers=int(ledger.get("lineWorkers") or 0),
        tries_at=tries_at(parse_time(ledger.get("queuedSince")), parse_time(ledger.get("waitsSince"))),
        reserves=bool(ledger.get("lineReserves")),
    )


def _same_line(before: PlacementContender | None, now: PlacementContender | None) -> bool:
    """In every field, those that give no place among them."""
    return (vars(before) if before else None) == (vars(now) if now else None)


def _held_devices(job: Mapping[str, Any], pods: Iterable[PodView]) -> dict[str, Counter[str]]:
    """What the job's workers have of nodes, those whose pods are still ending among them."""
    worker = job["spec"].get("worker") or {}
    amounts = worker_devices(worker.get("template") or {}, worker.get("devices") or {})
    found: dict[str, Counter[str]] = {}
    for pod in pods if amounts else ():
        if pod.id.role == "worker" and pod.place.node and pod.phase not in ("Succeeded", "Failed"):
            found.setdefault(pod.place.node, Counter()).update(amounts)
    return found
