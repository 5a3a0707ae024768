"""Unix sockets on which an agent talks to the ranks of an elastic job: one per process, served by one thread.

No call blocks on a rank: a stopped process does not read, and its unread messages are stored until it ends.
"""

import logging
import os
import selectors
import shutil
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringtrain.errors import ConfigurationError
from ringtrain.shared.framing import StreamLineBuffer, line_of
from ringtrain_job.agent.elastic.messages import MOST_BYTES, FromRank, parse_slot_message, slot_error_message
from ringtrain_job.control.model import Member

log = logging.getLogger(__name__)

_READ_BYTES = 64 << 10
# The kernel limits a path to 107 bytes; a slot and a life have at most 21.
_MOST_PATH = 80


@dataclass
class _RankConnection:
    """Connection of a rank, with an incomplete received line and the bytes still to send."""

    caller: Member
    socket: socket.socket
    received: StreamLineBuffer = field(default_factory=StreamLineBuffer)
    waiting: bytearray = field(default_factory=bytearray)
    closing: bool = False


@dataclass
class _Listening:
    """Listening socket for one rank process, and the connection of that process."""

    caller: Member
    path: Path
    socket: socket.socket
    connection: _RankConnection | None = None


class ElasticRankSockets:
    """Server of Unix sockets, one for each rank process.

    On the server's thread, `on_connection(caller, opened)` is called when a rank connects and when it disconnects, and
    `on_message(caller, message)` for each of its messages.
    """

    def __init__(
        self, on_connection: Callable[[Member, bool], None], on_message: Callable[[Member, FromRank], None]
    ) -> None:
        self._on_connection = on_connection
        self._on_message = on_message
        self._directory = _make_rank_socket_directory()
        self._listening: dict[Member, _Listening] = {}  # used by the server's thread alone, like all attributes below
        self._selector = selectors.DefaultSelector()
        self._work: deque[Callable[[], None]] = deque()
        self._closed = False
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="ringtrain-rank-sockets", daemon=True)
        self._thread.start()

    def open(self, caller: Member) -> Path:
        """Open a listening socket for the process `caller`; return its path."""
        path = self.path(caller)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen(8)
        listening.setblocking(False)
        self._do(lambda: self._add(_Listening(caller, path, listening)))
        return path

    def path(self, caller: Member) -> Path:
        """Return the path of the socket of `caller`, open or closed."""
        return self._directory / f"{caller.slot}-{caller.life}"

    def send(self, caller: Member, message: dict[str, Any]) -> None:
        """Send `message` to the process `caller`; drop it if the process is not connected."""
        data = line_of(message)

        def send() -> None:
            listening = self._listening.get(caller)
            if listening is not None and listening.connection is not None:
                self._queue(listening.connection, data)

        self._do(send)

    def forget(self, caller: Member) -> None:
        """Close the socket of the process `caller`, which has ended."""
        self._do(lambda: self._remove(caller))

    def close(self) -> None:
        """Close all sockets and remove their files."""
        self._do(self._stop)
        self._thread.join(5.0)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _do(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        with suppress(OSError):  # full: the thread wakes anyway; closed: nothing to do
            self._wake_write.send(b"\0", socket.MSG_DONTWAIT)

    def _run(self) -> None:
        while not self._closed:
            for key, mask in self._selector.select():
                if self._closed:
                    return
                if key.fileobj is self._wake_read:
                    with suppress(BlockingIOError):
                        self._wake_read.recv(4096)
                    while self._work:
                        self._work.popleft()()
                elif isinstance(key.data, _Listening):
                    self._accept(key.data)
                else:
                    self._serve(key.data, mask)

    def _add(self, listening: _Listening) -> None:
        self._listening[listening.caller] = listening
        self._selector.register(listening.socket, selectors.EVENT_READ, listening)

    def _accept(self, listening: _Listening) -> None:
        try:
            accepted, _ = listening.socket.accept()
        except OSError:  # it disconnected, or no descriptors are free
            return
        accepted.setblocking(False)
        if listening.connection is not None:
            self._read(listening.connection)  # a rank may close its connection and open the next one at once
        if listening.connection is not None:
            text = f"slot {listening.caller.slot} has a connection to its agent already; a rank opens one at a time"
            with accepted, suppress(OSError):
                accepted.send(line_of(slot_error_message(text)))
            return
        listening.connection = _RankConnection(listening.caller, accepted)
        self._selector.register(accepted, selectors.EVENT_READ, listening.connection)
        self._on_connection(listening.caller, True)

    def _serve(self, connection: _RankConnection, mask: int) -> None:
        if mask & selectors.EVENT_WRITE and connection.socket.fileno() >= 0:
            self._write(connection)
        if mask & selectors.EVENT_READ and connection.socket.fileno() >= 0:
            self._read(connection)

    def _read(self, connection: _RankConnection) -> None:
        while not connection.closing:
            try:
                data = connection.socket.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._drop(connection)
                return
            for line in connection.received.feed(data):
                self._take(connection, line)
            if len(connection.received.rest) > MOST_BYTES:
                self._report_problem(connection, f"a line of more than {MOST_BYTES} bytes")
                connection.closing = True
                self._write(connection)

    def _take(self, connection: _RankConnection, line: bytes) -> None:
        try:
            message = parse_slot_message(line)
        except ConfigurationError as exc:
            self._report_problem(connection, str(exc))
            return
        self._on_message(connection.caller, message)

    def _report_problem(self, connection: _RankConnection, text: str) -> None:
        log.warning("the rank in slot %d sent an invalid message to the agent: %s", connection.caller.slot, text)
        if len(connection.waiting) < MOST_BYTES:  # a rank that does not read gets no further errors
            self._queue(connection, line_of(slot_error_message(text)))

    def _queue(self, connection: _RankConnection, data: bytes) -> None:
        if connection.socket.fileno() < 0:
            return
        connection.waiting += data
        self._write(connection)

    def _write(self, connection: _RankConnection) -> None:
        try:
            while connection.waiting:
                del connection.waiting[: connection.socket.send(connection.waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)
            return
        if connection.closing and not connection.waiting:
            self._drop(connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.waiting else 0)
        self._selector.modify(connection.socket, events, connection)

    def _drop(self, connection: _RankConnection) -> None:
        if connection.socket.fileno() < 0:
            return
        self._selector.unregister(connection.socket)
        connection.socket.close()
        listening = self._listening.get(connection.caller)
        if listening is not None and listening.connection is connection:
            listening.connection = None
            self._on_connection(connection.caller, False)

    def _remove(self, caller: Member) -> None:
        listening = self._listening.pop(caller, None)
        if listening is None:
            return
        with suppress(OSError):
            listening.path.unlink()  # first, so that a process that sees the connection end finds no file
        if listening.connection is not None:
            self._drop(listening.connection)
        self._selector.unregister(listening.socket)
        listening.socket.close()

    def _stop(self) -> None:
        for caller in list(self._listening):
            self._remove(caller)
        self._closed = True
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()


def _make_rank_socket_directory() -> Path:
    """Create a private directory whose path is short enough for Unix sockets in it."""
    made = tempfile.mkdtemp(prefix="ringtrain-")  # mode 0700
    if len(os.fsencode(made)) <= _MOST_PATH:
        return Path(made)
    os.rmdir(made)
    return Path(tempfile.mkdtemp(prefix="ringtrain-", dir="/tmp"))
