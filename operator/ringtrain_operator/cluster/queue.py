"""Which jobs to look at next: a deduplicating queue of keys with a backoff per key."""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 300.0
# One of so many keys is not urgent, if any waits: a storm of changes must not keep new jobs from starting.
FAIR_SHARE = 4


@dataclass(frozen=True, order=True)
class JobKey:
    """A job by namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ReconcileQueue:
    """At most one entry a key, and no key with two workers at once.

    A key added while it waits is one entry; a key added while a worker has it comes again when that worker is
    done. Urgent keys go before others, but not without end. All methods belong to one event loop.
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
        """Have `key` looked at as soon as a worker is free; an urgent one before those that are not."""
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
        """Have `key` looked at in `delay_s`, or earlier if that was asked for already."""
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
        """Have `key` looked at again after a failure; each failure doubles the wait. Returns the wait."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait_s: float = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (failures - 1)) * self._jitter()
        self.add_after(key, wait_s)
        return wait_s

    def succeeded(self, key: JobKey) -> None:
        """Begin the backoff of `key` anew."""
        self._failures.pop(key, None)

    def forget(self, key: JobKey) -> None:
        """Drop what is kept about a key that is gone."""
        self._failures.pop(key, None)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def take(self) -> JobKey:
        """The next key; the caller must call `done(key)`."""
        await self._waiting.get()
        self._taken += 1
        others_turn = self._taken % FAIR_SHARE == 0 and self._ready
        key = self._ready.popleft() if others_turn or not self._first else self._first.popleft()
        self._urgent.discard(key)
        self._dirty.discard(key)
        self._busy[key] = asyncio.get_running_loop().time()
        return key

    def done(self, key: JobKey) -> None:
        """The worker is through with `key`; if it was added meanwhile, it comes again."""
        del self._busy[key]
        self._settled.set()
        if key in self._dirty and not self._closed:
            self._push(key)

    def is_busy(self, key: JobKey) -> bool:
        """Whether a worker has `key` now."""
        return key in self._busy

    async def idle(self) -> None:
        """Return when no worker has a key."""
        while self._busy:
            self._settled.clear()
            await self._settled.wait()

    def longest_busy_s(self) -> float:
        """How long the slowest worker has been at its key."""
        now = asyncio.get_running_loop().time()
        return max((now - since for since in self._busy.values()), default=0.0)

    def close(self) -> None:
        """Take nothing more in, and wake nobody."""
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
