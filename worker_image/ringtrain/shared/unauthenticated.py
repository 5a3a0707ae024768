"""Limits on unauthenticated connections and calls, for every port of launcher, agents and ranks."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ringtrain.errors import counted

# Limit of unauthenticated connections on each port: a peer authenticates within milliseconds.
MOST_UNAUTHENTICATED: Final = 64
# Time in which a peer must authenticate.
UNAUTHENTICATED_S: Final = 10.0
_WINDOW_S: Final = 10.0


@dataclass(eq=False)
class UnauthenticatedPeer:
    """Connection or call that has not authenticated yet. `end`: function that cancels it."""

    deadline: float
    end: Callable[[], None]


class UnauthenticatedPeers:
    """Unauthenticated connections: at most `most`, each for at most `limit_s`. A further connection ends the oldest
    one.

    The oldest is ended because a real peer authenticates quickly. One thread ends connections whose time is over; it
    starts with the first of them, and `close` ends it.
    """

    def __init__(self, most: int = MOST_UNAUTHENTICATED, limit_s: float = UNAUTHENTICATED_S) -> None:
        self.most = most
        self._limit_s = limit_s
        self._changed = threading.Condition()
        self._here: dict[UnauthenticatedPeer, None] = {}  # oldest first
        self._thread: threading.Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._here)

    def enter(self, end: Callable[[], None]) -> UnauthenticatedPeer:
        """Add and return a connection that has not authenticated. `end`: called to cancel it if it exceeds a limit."""
        peer = UnauthenticatedPeer(time.monotonic() + self._limit_s, end)
        with self._changed:
            oldest = next(iter(self._here)) if len(self._here) >= self.most else None
            if oldest is not None:
                del self._here[oldest]
            self._here[peer] = None
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._watch, name="ringtrain-unauthenticated", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        if oldest is not None:
            oldest.end()
        return peer

    def leave(self, peer: UnauthenticatedPeer) -> None:
        """Remove a connection that has authenticated or ended. A second call does nothing."""
        with self._changed:
            self._here.pop(peer, None)

    def close(self) -> None:
        """Cancel all unauthenticated connections, and end the thread."""
        with self._changed:
            self._closed = True
            left, self._here = list(self._here), {}
            self._changed.notify_all()
        for peer in left:
            peer.end()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._closed:
            with self._changed:
                first = next(iter(self._here), None)
                left = None if first is None else first.deadline - time.monotonic()
                if left is None or left > 0:
                    if not self._closed:
                        self._changed.wait(left)
                    continue
                assert first is not None
                del self._here[first]
            first.end()


class RateLimitedWarnings:
    """Log of warnings that peers can cause: at most `most` in ten seconds; the next one counts the omitted ones."""

    def __init__(self, warn: Callable[[str], None], most: int = 10) -> None:
        self._warn = warn
        self._most = most
        self._lock = threading.Lock()
        self._window_ends = 0.0
        self._logged = self._left_out = 0

    def say(self, line: str) -> None:
        """Log `line`, or count it as omitted if the limit is reached."""
        with self._lock:
            now = time.monotonic()
            if now >= self._window_ends:
                self._window_ends, self._logged = now + _WINDOW_S, 0
            if self._logged >= self._most:
                self._left_out += 1
                return
            self._logged += 1
            left_out, self._left_out = self._left_out, 0
        self._warn(f"{line} ({counted(left_out, 'more such line')} omitted)" if left_out else line)
