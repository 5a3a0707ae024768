"""Server of the data port, which sends tensor data to authenticated ranks and answers no other requests."""

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from ringtrain._core.transport.base import TransportService
from ringtrain._core.transport.channel import SocketChannel
from ringtrain._core.transport.data_serving import Http2CallServing
from ringtrain.shared.address import listening_socket
from ringtrain.shared.connection_errors import ConnectionLost
from ringtrain.shared.tls import TlsIdentity
from ringtrain.shared.unauthenticated import RateLimitedWarnings, UnauthenticatedPeers

log = logging.getLogger("ringtrain")

# Time from a connection's first byte until its session: two requests' time, see `data_serving`.
_UNAUTHENTICATED_S: Final = 20.0
_ACCEPT_S: Final = 1.0
# Interval at which threads that wait for the next call wake up: small in cost compared to the reader's tick.
_TICK_S: Final = 1.0
_IDLE_CLOSE_S: Final = 10.0


class TransportDataServer:
    """Server of this rank's data port: a free port of `host` ("" for all interfaces).

    Connections in use have a thread each; idle ones share one.
    """

    def __init__(
        self,
        host: str,
        service: TransportService,
        timeout_s: float,
        tls: TlsIdentity | None = None,
        also_in_clear: bool = False,
    ) -> None:
        """Listen and start to accept. `also_in_clear`: whether callers without TLS are allowed although `tls` is set.

        Raises OSError if no port is available.
        """
        self._also_in_clear = also_in_clear
        self._service = service
        self._tls = tls
        self._timeout_s = timeout_s
        self._listener = listening_socket(host)
        self.port = int(self._listener.getsockname()[1])
        self._changed = threading.Condition()
        self._closing = False
        self._serving: dict[Http2CallServing, threading.Thread | None] = {}  # None: it is idle
        self._idle = _IdleHttp2Connections(self._resume)
        self._unauthenticated = UnauthenticatedPeers(limit_s=_UNAUTHENTICATED_S)
        self._complaints = RateLimitedWarnings(log.warning)
        self._acceptor = threading.Thread(target=self._accept, name="ringtrain-data-port", daemon=True)
        self._acceptor.start()

    def close(self, grace_s: float) -> None:
        """Wait up to `grace_s` for calls in progress, then close the port and all connections."""
        with self._changed:
            self._closing = True
            self._changed.wait_for(lambda: not any(one.is_busy for one in self._serving), grace_s)
            serving = dict(self._serving)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes up `accept`
        for one in serving:
            one.shut()
        self._acceptor.join()
        self._unauthenticated.close()
        self._idle.close()
        for thread in serving.values():
            if thread is not None:
                thread.join(grace_s + _ACCEPT_S)
        for one, thread in serving.items():
            if thread is None:
                one.close()
        self._listener.close()

    def enter(self, one: Http2CallServing, busy: bool) -> bool:
        """Record that connection `one` begins a call (`busy` is True) or ends a call. Return False if the server is
        closing."""
        with self._changed:
            one.is_busy = busy and not self._closing
            if self._closing:
                self._changed.notify_all()
            return not self._closing

    def _accept(self) -> None:
        self._listener.settimeout(_ACCEPT_S)
        while not self._closing:
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if not self._closing:
                    self._complaints.say(f"the data port can't accept connections for a moment: {error.strerror}")
                    time.sleep(_ACCEPT_S)  # probably out of file descriptors
                continue
            self._serve_connection(sock)

    def _serve_connection(self, sock: socket.socket) -> None:
        try:
            channel = SocketChannel(sock, self._timeout_s / 6, _TICK_S)
        except (OSError, ConnectionLost):
            sock.close()
            return
        one = Http2CallServing(channel, self._service, self.enter, self._complaints, self._tls, self._also_in_clear)
        with self._changed:
            if self._closing:
                channel.close()
                return
            thread = self._serving[one] = self._thread_for(one)
        unauthenticated = self._unauthenticated.enter(lambda: self._close_unauthenticated(one))
        one.on_proven = lambda: self._unauthenticated.leave(unauthenticated)
        thread.start()

    def _thread_for(self, one: Http2CallServing) -> threading.Thread:
        return threading.Thread(target=self._serve, args=(one,), name="ringtrain-data", daemon=True)

    def _close_unauthenticated(self, one: Http2CallServing) -> None:
        """Close connection `one`, whose caller has not authenticated in time."""
        if not self._closing:
            self._complaints.say(f"the data port closed a connection from {one.peer}, which had not authenticated yet")
        one.shut()

    def _serve(self, one: Http2CallServing) -> None:
        rests = False
        try:
            rests = one.run()
        finally:
            one.on_proven()
            with self._changed:
                if rests and not self._closing:
                    self._serving[one] = None
                    self._idle.add(one)
                else:
                    self._serving.pop(one, None)
                    self._changed.notify_all()
                    if rests:
                        one.close()

    def _resume(self, one: Http2CallServing) -> None:
        """Start a thread for the idle connection `one`, because data has arrived or it has ended."""
        with self._changed:
            if self._closing:
                return
            thread = self._serving[one] = self._thread_for(one)
            thread.start()  # before `close` may want to join it


class _IdleHttp2Connections:
    """Thread that watches all idle connections and calls `resume(connection)` when data arrives."""

    def __init__(self, resume: Callable[[Http2CallServing], None]) -> None:
        self._resume = resume
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="ringtrain-data-idle", daemon=True)
        self._thread.start()

    def add(self, connection: Http2CallServing) -> None:
        """Watch `connection`. No other thread may read from it until `resume` is called."""
        with self._lock:
            self._selector.register(connection.fileno(), selectors.EVENT_READ, connection)

    def close(self) -> None:
        """Stop the thread. Does not close the connections."""
        with contextlib.suppress(OSError):
            self._wake_write.send(b"\0")
        self._thread.join(_IDLE_CLOSE_S)
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
