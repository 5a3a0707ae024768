"""A Pull as the rank sees it that reads: into place, in the thread that needs it."""

import time
from collections.abc import Callable
from typing import Final

from ringtrain._core.transport.base import Broken, How, Unexpected
from ringtrain._core.transport.http2.connection import Connection
from ringtrain._core.transport.http2.frames import PREFIX_BYTES
from ringtrain._core.transport.http2.headers import message_of, request_block
from ringtrain._core.transport.http2.sender import prefix_of
from ringtrain._core.transport.outcome import Status, error_of
from ringtrain._core.wire.failure import PullRefused
from ringtrain._core.wire.frame import HEADER_BYTES, describe_difference
from ringtrain.shared.connection_errors import ConnectionLost, DeadlinePassed, ProtocolError, StreamReset

_ENDS: Final = (ConnectionLost, DeadlinePassed, ProtocolError, StreamReset)


class PullStream:
    """Frames of one Pull. `give_back` gets the connection when another call may follow on it."""

    def __init__(self, connection: Connection, give_back: Callable[[Connection], None]) -> None:
        self._connection = connection
        self._give_back = give_back
        self._front = memoryview(bytearray(PREFIX_BYTES + HEADER_BYTES))
        self._cancelled = self._done = False

    def ask(self, request: bytes, authority: str, timeout_s: float) -> None:
        """Send the request. Raises Broken."""
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
                raise Unexpected("it sent too much")
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
        """What does not come as peers of ours send it."""
        front = self._front
        count = self._connection.read_data(front)
        if count == 0:
            self._check_status()
            raise Unexpected("it ended too early")
        compressed, length = prefix_of(front) if count >= PREFIX_BYTES else (0, 0)
        if compressed or length != HEADER_BYTES + len(target) or front[PREFIX_BYTES:] != head:
            came = bytes(front[PREFIX_BYTES : min(count, PREFIX_BYTES + length)])
            raise Unexpected(describe_difference(head, len(target), came, max(length - HEADER_BYTES, 0)))
        if self._connection.read_data(target) < len(target):
            self._check_status()
            raise Unexpected("it ended in the middle of a frame")

    def _check_status(self) -> None:
        """After the end of the stream: raise what the peer says about how the call went."""
        fields = self._connection.blocks[-1] if self._connection.blocks else {}
        try:
            status = int(fields.get("grpc-status", ""))
        except ValueError:
            code = fields.get(":status")
            raise Broken(How.CLOSED, f"no status of gRPC at the end of a call (HTTP status {code})") from None
        if status != Status.OK:
            raise error_of(status, message_of(fields))

    def _broken(self, error: Exception) -> Broken | PullRefused:
        if self._cancelled:
            return Broken(How.CANCELLED, "cancelled by this rank")
        if isinstance(error, DeadlinePassed):
            return Broken(How.TIMEOUT, "nothing within the deadline")
        return Broken(How.CLOSED, str(error) or "the call was reset by the peer")
