"""Failure state of a world, and the events that its collectives report to the monitor."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ringtrain._core.wire.failure import WorldFailure


class WorldFailureState:
    """First failure of a world, and the threads and callbacks that wait for it. Later failures are ignored."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.failure: WorldFailure | None = None
        self._interrupted = False
        self._callbacks: list[Callable[[], None]] = []

    def reach(self, failure: WorldFailure) -> bool:
        """Set the world's failure if it has none, and wake all waiting threads. Return whether it was the first."""
        with self._lock:
            if self.failure is not None:
                return False
            self.failure = failure
        self._call_back()
        self._reached.set()
        self._over.set()
        return True

    def interrupt(self) -> None:
        """Run the callbacks although there is no failure, because this rank leaves and its work must end."""
        with self._lock:
            self._interrupted = True
        self._call_back()
        self._over.set()

    def on_reached(self, callback: Callable[[], None]) -> None:
        """Register a function to call at the first failure or `interrupt`; if that has happened, call it now."""
        with self._lock:
            if self.failure is None and not self._interrupted:
                self._callbacks.append(callback)
                return
        callback()

    def forget(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a failure. Return whether there was one within `timeout_s`."""
        return self._reached.wait(max(timeout_s, 0))

    def wait_over(self, timeout_s: float) -> None:
        """Wait until the world has failed or this rank leaves it, at most `timeout_s`."""
        self._over.wait(timeout_s)

    def _call_back(self) -> None:
        with self._lock:
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback()

    def check(self) -> None:
        """Raise the world's failure, if any."""
        if self.failure is not None:
            raise self.failure.error()


@dataclass(frozen=True)
class RankActivity:
    """Collective in which a rank is, such as `allreduce #7 "conv1.weight"`, for messages and status replies."""

    label: str
    process_set: int
    sequence: int


@dataclass(frozen=True)
class PeerClosed:
    """Event: the connection to rank `peer` broke."""

    peer: int
    detail: str
    activity: RankActivity | None


@dataclass(frozen=True)
class PeersStalled:
    """Event: none of the ranks `peers` has sent the expected data within the deadline."""

    peers: tuple[int, ...]
    waited_s: float
    activity: RankActivity


Report = PeerClosed | PeersStalled | WorldFailure
