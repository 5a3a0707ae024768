"""Simulated time: threads become greenlets, and whoever waits costs nothing.

`Clock.threading`, `.time` and `.queue` stand in for the modules of these names, as far as the runtime uses them.
One greenlet runs at a time, until it waits; then the next event is due.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from greenlet import getcurrent, greenlet


class Clock:
    """Events in the order of their times, and of their making where times are equal."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._loop = getcurrent()
        self.threading = SimpleNamespace(
            Condition=lambda lock=None: Condition(self),
            Event=lambda: Event(self),
            Lock=Lock,
            RLock=Lock,
            Thread=lambda target, args=(), name="", daemon=True: Thread(self, lambda: target(*args)),
        )
        self.time = SimpleNamespace(monotonic=lambda: self.now)
        self.queue = SimpleNamespace(SimpleQueue=lambda: Queue(self))

    def at(self, when: float, call: Callable[[], object]) -> None:
        heapq.heappush(self._events, (when, next(self._order), call))

    def spawn(self, function: Callable[[], object]) -> None:
        """Run `function` as a greenlet, from now on."""
        self.at(self.now, greenlet(function, self._loop).switch)

    def sleep_until(self, when: float) -> None:
        self.at(when, getcurrent().switch)
        self._loop.switch()

    def pause(self) -> None:
        """Wait until another event switches back to this greenlet."""
        self._loop.switch()

    def run(self, done: Callable[[], bool]) -> None:
        """Let events happen until `done()`. AssertionError if nothing would ever happen again before that."""
        while not done():
            assert self._events, "everyone waits for ever"
            when, _, call = heapq.heappop(self._events)
            self.now = max(self.now, when)
            call()


class Condition:
    """As `threading.Condition`, without its lock: nobody is interrupted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[list[Any]] = []

    def __enter__(self) -> "Condition":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def wait(self, timeout: float | None = None) -> bool:
        waiter = [getcurrent(), False, False]  # who, woken, notified
        self._waiting.append(waiter)
        if timeout is not None:
            self._clock.at(self._clock.now + max(timeout, 0), lambda: self._wake(waiter, False))
        self._clock.pause()
        if not waiter[2]:
            self._waiting.remove(waiter)
        return bool(waiter[2])

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else self._clock.now + timeout
        while not (found := predicate()):
            left = None if end is None else end - self._clock.now
            if left is not None and left <= 0:
                return found
            self.wait(left)
        return found

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter[2] = True
            self._clock.at(self._clock.now, lambda waiter=waiter: self._wake(waiter, True))

    def _wake(self, waiter: list[Any], notified: bool) -> None:
        if not waiter[1] and waiter[2] == notified:
            waiter[1] = True
            waiter[0].switch()


class Event(Condition):
    """As `threading.Event`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            super().wait(timeout)
        return self._set


class Lock:
    """As `threading.Lock` for greenlets, which do not wait while they hold one."""

    def __init__(self) -> None:
        self._held = False

    def acquire(self, blocking: bool = True) -> bool:
        assert not (blocking and self._held), "a greenlet waited with this lock in its hands"
        was, self._held = self._held, True
        return not was

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Thread:
    """As `threading.Thread`."""

    def __init__(self, clock: Clock, target: Callable[[], object]) -> None:
        self._target, self._clock, self._ended = target, clock, Event(clock)
        self.ident: int | None = None

    def start(self) -> None:
        self.ident = id(self)
        self._clock.spawn(self._run)

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def _run(self) -> None:
        self._target()
        self._ended.set()


class Queue:
    """As `queue.SimpleQueue`."""

    def __init__(self, clock: Clock) -> None:
        self._items: deque[Any] = deque()
        self._changed = Condition(clock)

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._changed.notify_all()

    def get(self) -> Any:
        self._changed.wait_for(lambda: self._items)
        return self._items.popleft()
