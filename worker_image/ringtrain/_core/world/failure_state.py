"""Failure state of a world, and the events that a rank reports to its monitor."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ringtrain._core.wire.failure import WorldFailure


class WorldFailureState:
    """First failure of a world. Later ones are ignored."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.failure: WorldFailure | None = None
        self._interrupted = False
        self._callbacks: list[Callable[[], None]] = []

    def reach(self, failure: WorldFailure) -> bool:
        """Record `failure` unless there is one already, and wake all waiting threads.

        Returns whether it was the first.
        """
        with self._lock:
            if self.failure is not None:
                return False
            self.failure = failure
        self._call_back()
        self._reached.set()
        self._over.set()
        return True

    def interrupt(self) -> None:
        """Call back as for a failure, because this rank leaves and its work must end."""
        with self._lock:
            self._interrupted = True
        self._call_back()
        self._over.set()

    def on_reached(self, callback: Callable[[], None]) -> None:
        """Register a callback for the first failure; it is called at once if the world has already failed."""
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
        """Wait for a failure. Return whether there was one in time."""
        return self._reached.wait(max(timeout_s, 0))

    def wait_over(self, timeout_s: float) -> None:
        """Wait for a failure, or for this rank to leave, without a failure."""
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
    """Current collective of a rank, for messages and probes: `allreduce #7 "conv1.weight"`."""

    label: str
    process_set: int
    sequence: int


@dataclass(frozen=True)
class PeerClosed:
    """Event: the connection to `peer` broke."""

    peer: int
    detail: str
    activity: RankActivity | None


@dataclass(frozen=True)
class PeersStalled:
    """Event: nothing was received from `peers` within the deadline."""

    peers: tuple[int, ...]
    waited_s: float
    activity: RankActivity


Report = PeerClosed | PeersStalled | WorldFailure
