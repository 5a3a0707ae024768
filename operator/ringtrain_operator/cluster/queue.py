"""Work queue with the keys of jobs to reconcile: without duplicates, and with a backoff per key."""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 300.0
# One in this many keys is not urgent, if any waits: many urgent changes must not starve new jobs.
FAIR_SHARE = 4


@dataclass(frozen=True, order=True)
class JobKey:
    """A job by namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ReconcileQueue:
    """Work queue in which each key is queued at most once and is processed by at most one task.

    A key added while it waits stays one entry. A key added while a task processes it is queued again when that task is
    done. Urgent keys precede others, but cannot starve them. All methods belong to one event loop.
    """

    def __init__(self, jitter: Callable[[], float] = lambda: random.uniform(0.75, 1.25)) -> None:
        self._jitter = jitter
        self._ready: deque[JobKey] = deque()
        self._first: deque[JobKey] = deque()
        self._urgent: set[JobKey] = set()
        self._taken = 0
        self._dirty: set[JobKey] = set()
        self._busy: dict[JobKey, float] = {}
        self._failures: dict[JobKey, int] = {}
        self._timers: dict[JobKey, asyncio.TimerHandle] = {}
        self._waiting: asyncio.Queue[None] = asyncio.Queue()
        self._settled = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._ready) + len(self._first)

    def add(self, key: JobKey, urgent: bool = False) -> None:
        """Enqueue `key` for the next free task; urgent keys come before others."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if self._closed:
            return
        if urgent:
            self._hurry(key)
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._busy:
            self._push(key)

    def add_after(self, key: JobKey, delay_s: float) -> None:
        """Enqueue `key` after `delay_s` seconds, or earlier if an earlier time is already scheduled."""
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_s
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(due, self.add, key)

    def retry(self, key: JobKey) -> float:
        """Enqueue `key` after a failed reconcile. Returns the delay in seconds, which doubles with each failure."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait_s: float = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (failures - 1)) * self._jitter()
        self.add_after(key, wait_s)
        return wait_s

    def succeeded(self, key: JobKey) -> None:
        """Reset the backoff of `key`."""
        self._failures.pop(key, None)

    def forget(self, key: JobKey) -> None:
        """Drop the state of a deleted key."""
        self._failures.pop(key, None)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def take(self) -> JobKey:
        """Wait for and return the next key. The caller must call `done(key)`."""
        await self._waiting.get()
        self._taken += 1
        others_turn = self._taken % FAIR_SHARE == 0 and self._ready
        key = self._ready.popleft() if others_turn or not self._first else self._first.popleft()
        self._urgent.discard(key)
        self._dirty.discard(key)
        self._busy[key] = asyncio.get_running_loop().time()
        return key

    def done(self, key: JobKey) -> None:
        """Mark `key` as processed. If the key was added meanwhile, it is queued again."""
        del self._busy[key]
        self._settled.set()
        if key in self._dirty and not self._closed:
            self._push(key)

    def is_busy(self, key: JobKey) -> bool:
        """Return whether a task processes `key` now."""
        return key in self._busy

    async def idle(self) -> None:
        """Wait until no task processes a key."""
        while self._busy:
            self._settled.clear()
            await self._settled.wait()

    def longest_busy_s(self) -> float:
        """Return for how many seconds the slowest task has processed its key; 0 if none processes one."""
        now = asyncio.get_running_loop().time()
        return max((now - since for since in self._busy.values()), default=0.0)

    def close(self) -> None:
        """Accept no more keys, and drop the keys that wait."""
        self._closed = True
        self._ready.clear()
        self._first.clear()
        while not self._waiting.empty():
            self._waiting.get_nowait()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _hurry(self, key: JobKey) -> None:
        if key in self._urgent:
            return
        self._urgent.add(key)
        if key in self._dirty and key not in self._busy:
            self._ready.remove(key)
            self._first.append(key)

    def _push(self, key: JobKey) -> None:
        (self._first if key in self._urgent else self._ready).append(key)
        self._waiting.put_nowait(None)
