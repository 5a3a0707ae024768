"""Connections to the data ports of peers, opened once and reused for later Pull requests (for tensor data)."""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Final

from ringtrain._core.transport.base import (
    StreamBroken,
    StreamEnd,
    TransportService,
    TransportStatus,
    UnexpectedFrame,
    transport_error_of,
)
from ringtrain._core.transport.channel import SocketChannel, stream_prefix_of
from ringtrain._core.transport.connection import Http2Connection
from ringtrain._core.transport.data_server import TransportDataServer
from ringtrain._core.transport.frames import MAX_STREAM, PREFIX_BYTES, grpc_message_of, request_block
from ringtrain._core.wire.failure import PullRefused
from ringtrain._core.wire.messages import HEADER_BYTES, describe_difference
from ringtrain.shared.address import host_port, listening_address, split_address
from ringtrain.shared.connection_errors import ConnectionLost, DeadlinePassed, ProtocolError, StreamReset
from ringtrain.shared.tls import TlsIdentity

_ENDS: Final = (ConnectionLost, DeadlinePassed, ProtocolError, StreamReset)


class SocketFrameStream:
    """Frames of one Pull request over a data port. `give_back`: called with the connection if it can be reused."""

    def __init__(self, connection: Http2Connection, give_back: Callable[[Http2Connection], None]) -> None:
        self._connection = connection
        self._give_back = give_back
        self._front = memoryview(bytearray(PREFIX_BYTES + HEADER_BYTES))
        self._cancelled = self._done = False

    def ask(self, request: bytes, authority: str, timeout_s: float) -> None:
        """Send the Pull `request`. Raises StreamBroken if that fails."""
        connection = self._connection
        connection.channel.deadline = time.monotonic() + timeout_s
        try:
            connection.open_stream(request_block(authority, timeout_s))
            connection.send_message(b"", request, end=True)
            connection.flush()
        except _ENDS as error:
            self.close()
            raise self._broken(error) from error

    def read_into(self, head: bytes, target: memoryview) -> None:
        try:
            if not self._connection.read_message(head, target):
                self._read_other(head, target)
        except _ENDS as error:
            raise self._broken(error) from error

    def end(self) -> None:
        try:
            if not self._connection.at_end():
                raise UnexpectedFrame("the peer sent more data than expected")
            self._check_status()
        except _ENDS as error:
            raise self._broken(error) from error
        self._done = True
        self._connection.end_call()
        self._give_back(self._connection)

    def cancel(self) -> None:
        self._cancelled = True
        if not self._done:
            self._connection.channel.shut()

    def close(self) -> None:
        if not self._done:
            self._done = True
            self._connection.channel.close()

    def _read_other(self, head: bytes, target: memoryview) -> None:
        """Read the next frame from a server that divides messages differently from ringtrain's own."""
        front = self._front
        count = self._connection.read_data(front)
        if count == 0:
            self._check_status()
            raise UnexpectedFrame("the stream ended too early")
        compressed, length = stream_prefix_of(front) if count >= PREFIX_BYTES else (0, 0)
        if compressed or length != HEADER_BYTES + len(target) or front[PREFIX_BYTES:] != head:
            came = bytes(front[PREFIX_BYTES : min(count, PREFIX_BYTES + length)])
            raise UnexpectedFrame(describe_difference(head, len(target), came, max(length - HEADER_BYTES, 0)))
        if self._connection.read_data(target) < len(target):
            self._check_status()
            raise UnexpectedFrame("the stream ended in the middle of a frame")

    def _check_status(self) -> None:
        """Raise the error that the peer's trailers report; do nothing if the status is OK."""
        fields = self._connection.blocks[-1] if self._connection.blocks else {}
        try:
            status = int(fields.get("grpc-status", ""))
        except ValueError:
            code = fields.get(":status")
            raise StreamBroken(StreamEnd.CLOSED, f"the call ended without a gRPC status (HTTP status {code})") from None
        if status != TransportStatus.OK:
            raise transport_error_of(status, grpc_message_of(fields))

    def _broken(self, error: Exception) -> StreamBroken | PullRefused:
        if self._cancelled:
            return StreamBroken(StreamEnd.CANCELLED, "this rank cancelled the call")
        if isinstance(error, DeadlinePassed):
            return StreamBroken(StreamEnd.TIMEOUT, "nothing within the deadline")
        return StreamBroken(StreamEnd.CLOSED, str(error) or "the call was reset by the peer")


log = logging.getLogger("ringtrain")

# Fraction of the timeout for a dial; all peers are dialled at once.
_DIAL_SHARE: Final = 0.08

# Concurrent dials of one rank: a port admits only few connections without a session.
_DIALS_AT_ONCE: Final = 16
_ATTEMPTS: Final = 3
# A connection that was used this recently is reused without a check.
_SURE_S: Final = 1.0


class TransportDataPath:
    """This rank's data port (a separate port for tensors, faster than gRPC), and connections to those of peers.

    `addresses`: `host:port` by rank. `in_clear`: peers with which it does not use `tls`.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[str],
        timeout_s: float,
        tls: TlsIdentity | None = None,
        in_clear: Collection[int] = (),
    ) -> None:
        self._in_clear = in_clear
        self._rank = rank
        self._tls = tls
        self._addresses = addresses
        self._timeout_s = timeout_s
        self._server: TransportDataServer | None = None
        self._lock = threading.Lock()
        self._dials = threading.BoundedSemaphore(_DIALS_AT_ONCE)
        self._closed = False
        self._is_reported = False
        self._authorities: dict[int, str] = {}
        self._dialled: dict[int, Future[Http2Connection | Exception]] = {}
        self._idle: dict[int, list[tuple[float, Http2Connection]]] = {}  # with the time of the last use

    def serve(self, service: TransportService) -> int | None:
        """Open this rank's data port and return it; None, with a log line, if no port is available."""
        host, _ = split_address(listening_address(self._addresses[self._rank]))
        try:
            self._server = TransportDataServer(
                "" if host == "::" else host, service, self._timeout_s, self._tls, bool(self._in_clear)
            )
        except OSError as error:
            log.warning("rank %d has no data port and uses gRPC, which is slower: %s", self._rank, error.strerror)
            return None
        return self._server.port

    def dial(self, peer: int, port: int, request: bytes) -> None:
        """Begin to connect to the data port of `peer` and to authenticate by `request`. Returns at once."""
        host, _ = split_address(self._addresses[peer])
        dialled: Future[Http2Connection | Exception] = Future()
        with self._lock:
            if self._closed:
                return
            self._dialled[peer] = dialled
            self._authorities[peer] = host_port(host, port)

        def dial() -> None:
            try:
                with self._dials:
                    if self._closed:
                        raise StreamBroken(StreamEnd.CANCELLED, "this rank cancelled the call")
                    dialled.set_result(self._dial_and_test(peer, request))
            except (OSError, StreamBroken) as error:
                dialled.set_result(error)  # logged on use: the peer may have left

        threading.Thread(target=dial, name=f"ringtrain-dial-{peer}", daemon=True).start()

    def pull(self, peer: int, request: bytes, timeout_s: float) -> SocketFrameStream | None:
        """Begin a Pull from `peer`. Return None if its data port can't be reached. Raises StreamBroken after
        `close`."""
        for _ in range(_ATTEMPTS):
            connection = self._connection(peer)
            if connection is None:
                return None
            stream = SocketFrameStream(connection, lambda connection: self._give_back(peer, connection))
            try:
                stream.ask(request, self._authorities[peer], timeout_s)
            except StreamBroken:
                if self._closed:
                    raise
                continue  # it broke after its last use
            return stream
        return None

    def close(self, grace_s: float) -> None:
        if self._server is not None:
            self._server.close(grace_s)
        with self._lock:
            self._closed = True
            idle = [connection for pool in self._idle.values() for _, connection in pool]
            self._idle.clear()
        dialled = [future.result(self._timeout_s) for future in list(self._dialled.values())]
        idle += [found for found in dialled if isinstance(found, Http2Connection)]
        for connection in idle:
            connection.channel.close()

    def _connection(self, peer: int) -> Http2Connection | None:
        """Return an idle or a new connection to the data port of `peer`; None if the peer has none or can't be
        reached."""
        if peer not in self._authorities:
            return None
        while True:
            with self._lock:
                pool = self._idle.get(peer)
                last = pool.pop() if pool else None
            if last is None:
                break
            used, connection = last
            if time.monotonic() - used < _SURE_S or _is_alive(connection):
                return connection
            connection.channel.close()
        dialled = self._dialled.pop(peer, None)
        if dialled is None:
            with contextlib.suppress(OSError, StreamBroken):  # gRPC's own connection finds the cause
                return self._dial(peer)
            return None
        first = dialled.result(self._timeout_s)
        if isinstance(first, Http2Connection):
            return first
        self._warn_once(peer, first)
        self._authorities.pop(peer)
        return None

    def _dial(self, peer: int) -> Http2Connection:
        """Open a connection to the data port of `peer`. Raises OSError or StreamBroken if that fails."""
        sock = socket.create_connection(split_address(self._authorities[peer]), timeout=self._timeout_s * _DIAL_SHARE)
        try:
            channel = SocketChannel(sock, self._timeout_s / 6)
        except OSError:
            sock.close()
            raise
        try:
            if self._tls is not None and peer not in self._in_clear:
                channel.secure(self._tls, True, time.monotonic() + self._timeout_s * _DIAL_SHARE)
            return Http2Connection(channel, is_client=True)
        except (ConnectionLost, DeadlinePassed) as error:
            channel.close()
            raise StreamBroken(StreamEnd.CLOSED, str(error)) from error

    def _dial_and_test(self, peer: int, request: bytes) -> Http2Connection:
        """Open a connection to `peer` and send `request` as a test, because a middlebox may block data. Return it."""
        connection = self._dial(peer)
        stream = SocketFrameStream(connection, lambda connection: None)
        try:
            stream.ask(request, self._authorities[peer], self._timeout_s * _DIAL_SHARE)
            stream.end()
        except PullRefused:
            connection.end_call()
        except BaseException as error:
            stream.close()
            if isinstance(error, UnexpectedFrame):
                raise StreamBroken(StreamEnd.CLOSED, str(error)) from error
            raise
        return connection

    def _warn_once(self, peer: int, error: Exception) -> None:
        with self._lock:
            was_reported, self._is_reported = self._is_reported or self._closed, True
        if not was_reported:
            log.warning(
                "rank %d can't reach the data port %s of rank %d (%s) and uses gRPC instead, which is slower",
                self._rank, self._authorities[peer], peer, error,
            )  # fmt: skip

    def _give_back(self, peer: int, connection: Http2Connection) -> None:
        with self._lock:
            if not self._closed and not connection.going_away and connection.stream < MAX_STREAM - 1:
                self._idle.setdefault(peer, []).append((time.monotonic(), connection))
                return
        connection.channel.close()


def _is_alive(connection: Http2Connection) -> bool:
    """Return whether the peer has not closed this idle connection."""
    try:
        connection.look()
    except (ConnectionLost, ProtocolError, DeadlinePassed):
        return False
    return not connection.going_away
