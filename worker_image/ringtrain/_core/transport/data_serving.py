"""Server's side of one connection to the data port."""

import contextlib
import logging
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from ringtrain._core.transport.base import StreamBroken, TransportService, TransportStatus, status_of
from ringtrain._core.transport.channel import SocketChannel, stream_prefix_of
from ringtrain._core.transport.connection import Http2Connection
from ringtrain._core.transport.frames import (
    CONTENT_TYPE,
    PREFACE,
    PREFIX_BYTES,
    PULL_PATH,
    Fields,
    Http2ErrorCode,
    response_block,
    timeout_of,
    trailer_block,
)
from ringtrain._core.wire.failure import NotAPeer, PullRefused
from ringtrain.shared.connection_errors import ConnectionLost, DeadlinePassed, ProtocolError, StreamReset
from ringtrain.shared.tls import TlsIdentity
from ringtrain.shared.unauthenticated import RateLimitedWarnings

log = logging.getLogger("ringtrain")

# Time from a connection's first byte until its session, and for each request to arrive completely.
_REQUEST_S: Final = 10.0
# A request contains a signature: some 40 bytes per tensor. gRPC's own limit.
_MOST_REQUEST_BYTES: Final = 4 << 20
_PIECE_BYTES: Final = 64 << 10
# gRPC's callers may omit their timeout.
_NO_TIMEOUT_S: Final = 3600.0
# Checking whether the caller still waits takes a system call, and its request has just arrived.
_LOOK_EVERY_S: Final = 0.25
# Time for which a thread stays with an idle connection, so that the next call need not wait for a thread.
_STAY_S: Final = 1.0
_ENDS: Final = (ConnectionLost, DeadlinePassed, ProtocolError, StreamReset)


class _NextHttp2Call(Enum):
    """Result of waiting for the next call on a connection."""

    CALL = auto()
    NOTHING_YET = auto()
    END = auto()


class Http2CallServing:
    """Server of one connection to the data port, which answers its calls one after the other.

    `enter(self, busy)`: called when a call begins and ends; returns False to stop.
    """

    # Called once: when the connection is authenticated, or ends without that.
    on_proven: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        channel: SocketChannel,
        service: TransportService,
        enter: Callable[["Http2CallServing", bool], bool],
        complaints: RateLimitedWarnings,
        tls: TlsIdentity | None = None,
        also_in_clear: bool = False,
    ) -> None:
        self._tls = tls
        self._also_in_clear = also_in_clear
        self._complaints = complaints
        self._channel = channel
        self._service = service
        self._enter = enter
        self.is_proven = False  # the connection is authenticated
        self.is_busy = False
        self._has_begun = False  # the current call's headers were sent
        self._began = time.monotonic()
        self._connection: Http2Connection | None = None  # set when it is known to be encrypted

    @property
    def peer(self) -> str:
        """Return the address of the client."""
        return self._channel.peer

    def shut(self) -> None:
        """Shut the connection down, so that the thread that serves it ends."""
        self._channel.shut()

    def close(self) -> None:
        """Close the connection. No thread may be serving it."""
        self._channel.close()

    def fileno(self) -> int:
        """Return the file descriptor of the connection's socket."""
        return self._channel.fileno()

    def run(self) -> bool:
        """Answer calls. Return True if the connection is idle, False if it has ended; call again when data arrives."""
        with contextlib.suppress(ConnectionLost, DeadlinePassed):
            connection = self._connection
            if connection is None:
                self._channel.deadline = self._began + _REQUEST_S
                if not self._is_secured():
                    return False
                connection = Http2Connection(self._channel, is_client=False)
            try:
                if self._connection is None:
                    self._begin(connection)
                if self._serve(connection):
                    return True
            except ProtocolError as error:
                self._refuse(connection, str(error))
            except DeadlinePassed:
                if not self.is_proven:
                    self._refuse(connection, f"the peer sent no request within {_REQUEST_S:g} s")
        self._channel.close()
        return False

    def _begin(self, connection: Http2Connection) -> None:
        if bytes(self._channel.take(len(PREFACE))) != PREFACE:
            raise ProtocolError("the peer does not begin with the preface of HTTP/2")
        self._connection = connection

    def _is_secured(self) -> bool:
        """Start TLS if this server requires it. Return False, after closing the connection, if that fails."""
        try:
            # A peer knows its own site and this one's: a caller without TLS is in this site, or has no valid session.
            in_clear = self._also_in_clear and self._channel.peek() == PREFACE[:1]
            if self._tls is not None and not in_clear:
                self._channel.secure(self._tls, False, self._channel.deadline)
            return True
        except ConnectionLost as error:
            self._complaints.say(f"the data port closed a connection from {self._channel.peer}: {error}")
            self._channel.close()
            return False

    def _serve(self, connection: Http2Connection) -> bool:
        """Answer calls one after the other. Return whether the connection is idle; False if it must be closed."""
        while (following := self._await_call(connection)) is _NextHttp2Call.CALL and self._enter(self, True):
            try:
                self._answer(connection)
            finally:
                going_on = self._enter(self, False)
            connection.end_call()
            if not going_on:
                return False
        return following is _NextHttp2Call.NOTHING_YET

    def _await_call(self, connection: Http2Connection) -> _NextHttp2Call:
        """Wait for the next call: a short time for an authenticated peer, for any other caller until its time limit is
        reached."""
        newest = connection.stream
        waits_until = time.monotonic() + _STAY_S
        self._channel.deadline = time.monotonic() + _REQUEST_S
        if self._channel.buffered:
            connection.look()
        while connection.stream == newest:
            came = self._channel.look(wait=True)
            self._channel.deadline = time.monotonic() + _REQUEST_S
            if came:
                connection.look()
            if not self.is_proven and self._channel.deadline > self._began + 2 * _REQUEST_S:
                if came:
                    raise DeadlinePassed
                return _NextHttp2Call.END
            if self.is_proven and not came and time.monotonic() >= waits_until:
                return _NextHttp2Call.NOTHING_YET
        return _NextHttp2Call.CALL

    def _answer(self, connection: Http2Connection) -> None:
        """Answer one call: read its request, send frames, and end it with trailers."""
        self._has_begun = False
        try:
            status, message = self._serve_pull(connection)
        except StreamReset:
            return
        except _Http2Objection as objection:
            status, message = objection.status, str(objection)
        self._channel.deadline = max(self._channel.deadline, time.monotonic() + 1.0)
        connection.send_block(trailer_block(status, message, only=not self._has_begun), end=True)
        connection.flush()
        if not self.is_proven:
            raise ProtocolError(message or "the peer has no session")

    def _serve_pull(self, connection: Http2Connection) -> tuple[int, str]:
        """Send the requested frames to the caller. Return the call's gRPC status and message."""
        timeout_s = _checked_stream_timeout(connection.blocks[0])
        request = _read_pull_request(connection)
        self._channel.deadline = time.monotonic() + timeout_s
        caller = Http2Caller(connection, self._channel.deadline)
        try:
            for frame in self._service.pull(request, caller):
                if not self._has_begun:
                    self._has_begun = True
                    self._prove()
                    connection.send_block(response_block(), end=False)
                connection.send_message(frame.head, frame.payload)
            self._prove()
            return caller.status()
        except NotAPeer as error:
            self.is_proven = False
            return status_of(error)
        except (PullRefused, StreamBroken) as error:
            self._prove()
            return status_of(error)
        except _ENDS:
            raise
        except Exception as error:  # a defect of ringtrain: the caller must not wait for its deadline
            log.exception("sending tensor data to a rank failed")
            return TransportStatus.UNKNOWN, f"{type(error).__name__}: {error}"
        finally:
            caller.leave()

    def _prove(self) -> None:
        if not self.is_proven:
            self.is_proven = True
            self.on_proven()

    def _refuse(self, connection: Http2Connection, reason: str) -> None:
        self._complaints.say(f"the data port closed a connection from {self._channel.peer}: {reason}")
        self._channel.deadline = time.monotonic() + 1.0
        connection.go_away(Http2ErrorCode.PROTOCOL_ERROR, reason)


class Http2Caller:
    """Peer whose Pull this connection is serving. Only the serving thread uses it."""

    def __init__(self, connection: Http2Connection, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._has_caller_left = False
        self._look_from = time.monotonic() + _LOOK_EVERY_S
        self._callbacks: list[Callable[[], None]] = []

    def remaining_s(self) -> float:
        return self._deadline - time.monotonic()

    def is_active(self) -> bool:
        now = time.monotonic()
        if now >= self._look_from:
            self._look_from = now + _LOOK_EVERY_S
            try:
                self._connection.look()
            except _ENDS:
                self._has_caller_left = True
        return not (self._has_caller_left or self._connection.was_reset or now >= self._deadline)

    def flush(self) -> None:
        self._connection.flush()

    def on_end(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def status(self) -> tuple[int, str]:
        """Return the gRPC status of the served call after all frames were sent, or after the caller cancelled it."""
        if self._has_caller_left:
            raise ConnectionLost("the peer closed the connection")
        if self._connection.was_reset:
            raise StreamReset
        if self.remaining_s() <= 0:
            return TransportStatus.DEADLINE_EXCEEDED, "nothing within the caller's deadline"
        return TransportStatus.OK, ""

    def leave(self) -> None:
        """Run the callbacks of `on_end` if the caller has cancelled the call, disconnected or timed out."""
        if self._has_caller_left or self._connection.was_reset or self.remaining_s() <= 0:
            for callback in self._callbacks:
                callback()


class _Http2Objection(Exception):
    """Error: a call that is malformed or not a Pull request. `status`: gRPC status to answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _checked_stream_timeout(fields: Fields) -> float:
    """Return the caller's timeout in seconds. Raises _Http2Objection if the headers are not those of a Pull."""
    if fields.get(":method") != "POST" or not fields.get("content-type", "").startswith(CONTENT_TYPE):
        raise _Http2Objection(TransportStatus.INTERNAL, "the request is not a gRPC call")
    if fields.get(":path") != PULL_PATH:
        raise _Http2Objection(TransportStatus.UNIMPLEMENTED, f"method {fields.get(':path', '')[:100]} does not exist")
    try:
        return timeout_of(fields) or _NO_TIMEOUT_S
    except ValueError as error:
        raise _Http2Objection(TransportStatus.INTERNAL, str(error)) from error


def _length_in(prefix: bytes | bytearray) -> int:
    """Return the length of the message that follows gRPC's `prefix`. Raises _Http2Objection if it is not allowed."""
    if len(prefix) < PREFIX_BYTES:
        raise _Http2Objection(TransportStatus.INTERNAL, "the call has no message")
    compressed, length = stream_prefix_of(prefix)
    if compressed:
        raise _Http2Objection(
            TransportStatus.UNIMPLEMENTED, "the request is compressed; expected an uncompressed request"
        )
    if length > _MOST_REQUEST_BYTES:
        raise _Http2Objection(
            TransportStatus.INTERNAL, f"the request has {length} bytes; expected at most {_MOST_REQUEST_BYTES}"
        )
    return length


def _read_pull_request(connection: Http2Connection) -> bytes:
    """Read the request, which must be exactly one message. Raises _Http2Objection for anything else."""
    whole = connection.take_rest()
    if whole is not None and len(whole) == PREFIX_BYTES + _length_in(whole[:PREFIX_BYTES]):
        return whole[PREFIX_BYTES:]
    if whole is not None:
        raise _Http2Objection(TransportStatus.INTERNAL, "the call does not have exactly one whole message")
    prefix = bytearray(PREFIX_BYTES)
    length = _length_in(prefix[: connection.read_data(memoryview(prefix))])
    # In pieces, so that a claimed length alone allocates no memory.
    parts = []
    while length:
        part = bytearray(min(length, _PIECE_BYTES))
        if connection.read_data(memoryview(part)) < len(part):
            raise _Http2Objection(TransportStatus.INTERNAL, "the message is shorter than its stated length")
        parts.append(part)
        length -= len(part)
    if not connection.at_end():
        raise _Http2Objection(TransportStatus.UNIMPLEMENTED, "the call has several messages")
    return b"".join(parts)
