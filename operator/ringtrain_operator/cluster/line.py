"""Jobs that wait to be placed whole, in their order: what their statuses say, in one place."""

from bisect import insort
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ringtrain_operator.cluster.queue import Key
from ringtrain_operator.observe.model import Contender, Contention
from ringtrain_operator.spec.job import is_ours
from ringtrain_operator.spec.parse import parse_time


class WaitingLine:
    """The jobs of one operator that stand in line. All methods belong to one event loop."""

    def __init__(self) -> None:
        self._order: list[Contender] = []
        self._places: dict[Key, Contender] = {}
        self._with_pods: set[Key] = set()
        self._keys: dict[str, Key] = {}

    def note(self, key: Key, job: Mapping[str, Any]) -> tuple[Key, ...]:
        """Take in what the job's status says now. Returns the other jobs for which that changes something.

        A job that is being deleted never has its turn; the status of one that runs elsewhere was written there.
        """
        is_here = "deletionTimestamp" not in job["metadata"] and is_ours(job["spec"].get("managedBy"))
        ledger = ((job.get("status") or {}).get("ledger") or {}) if is_here else {}
        since: datetime | None = parse_time(ledger.get("lineSince"))
        now = Contender(since, str(job["metadata"].get("uid")), str(key)) if since is not None else None
        if (now is not None or ledger.get("tooLarge")) and not ledger.get("queuedSince"):
            self._with_pods.add(key)
        else:
            self._with_pods.discard(key)
        return self._moved(key, now)

    def forget(self, key: Key) -> tuple[Key, ...]:
        """The job is gone. Returns the other jobs for which that changes something."""
        self._with_pods.discard(key)
        return self._moved(key, None)

    def others(self, key: Key) -> Contention:
        """Who waits besides this job."""
        mine = self._places.get(key)
        first = next((other for other in self._order[:2] if other is not mine), None)
        return Contention(len(self._order) - (mine is not None), first)

    def _moved(self, key: Key, now: Contender | None) -> tuple[Key, ...]:
        before = self._places.get(key)
        if before == now:
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
        # Whoever holds places may have to give way, or may keep them; the first may have its turn.
        first = {self._keys[one.job] for one in self._order[:1]}
        return tuple(sorted((self._with_pods | first) - {key}))
