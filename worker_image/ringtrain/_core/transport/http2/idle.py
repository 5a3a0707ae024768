"""Connections that wait for their next call, all of them in one thread."""

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

_CLOSE_S: Final = 10.0


class _HasSocket(Protocol):
    def fileno(self) -> int: ...


T = TypeVar("T", bound=_HasSocket)


class IdleConnections(Generic[T]):
    """Calls `resume(connection)`, in a thread of its own, when something has come on one that was added."""

    def __init__(self, resume: Callable[[T], None]) -> None:
        self._resume = resume
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="ringtrain-data-idle", daemon=True)
        self._thread.start()

    def add(self, connection: T) -> None:
        """Wait for what comes on `connection`, which nobody else reads until it is resumed."""
        with self._lock:
            self._selector.register(connection.fileno(), selectors.EVENT_READ, connection)

    def close(self) -> None:
        """Resume nothing any more. The connections are left to whoever added them."""
        with contextlib.suppress(OSError):
            self._wake_write.send(b"\0")
        self._thread.join(_CLOSE_S)
        for end in (self._selector, self._wake_read, self._wake_write):
            end.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._wake_read:
                    return
                with self._lock:
                    self._selector.unregister(key.fd)
                self._resume(key.data)
