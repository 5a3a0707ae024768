"""Whether a world still stands, and what a rank notices of that and hands to its monitor."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ringtrain._core.wire.failure import WorldFailure


class WorldFailureState:
    """The first failure of a world, once there is one. The first one stays."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.failure: WorldFailure | None = None
        self._interrupted = False
        self._callbacks: list[Callable[[], None]] = []

    def reach(self, failure: WorldFailure) -> bool:
        """Record `failure` unless there is one already; tell everyone who waits.

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
        """Call back as if there were a verdict: this rank leaves, and nothing of it may go on."""
        with self._lock:
            self._interrupted = True
        self._call_back()
        self._over.set()

    def on_reached(self, callback: Callable[[], None]) -> None:
        """Call back when the verdict is reached; at once if it is already."""
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
        """Wait for the verdict. Returns whether it was reached in time."""
        return self._reached.wait(max(timeout_s, 0))

    def wait_over(self, timeout_s: float) -> None:
        """Wait for the verdict, or for this rank to leave: then there may be none."""
        self._over.wait(timeout_s)

    def _call_back(self) -> None:
        with self._lock:
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback()

    def check(self) -> None:
        """Raise the world's failure if it has one."""
        if self.failure is not None:
            raise self.failure.error()


@dataclass(frozen=True)
class RankActivity:
    """The collective that a rank is in, for messages and for probing: `allreduce #7 "conv1.weight"`."""

    label: str
    process_set: int
    sequence: int


@dataclass(frozen=True)
class PeerClosed:
    """The connection to `peer` broke."""

    peer: int
    detail: str
    activity: RankActivity | None


@dataclass(frozen=True)
class PeersStalled:
    """Nothing came from `peers` within the deadline."""

    peers: tuple[int, ...]
    waited_s: float
    activity: RankActivity


Report = PeerClosed | PeersStalled | WorldFailure
