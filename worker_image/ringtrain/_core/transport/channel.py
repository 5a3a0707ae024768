"""Buffered reads and writes of a socket with deadlines and few copies, and the queue of HTTP/2 frames to send."""

import contextlib
import errno
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final

from ringtrain._core.transport import frames
from ringtrain._core.transport.frames import Http2FrameType, Http2Setting
from ringtrain.shared.connection_errors import ConnectionLost, DeadlinePassed, ProtocolError
from ringtrain.shared.tls import TlsIdentity, TlsSocket

# Frame headers and small frames are read through a buffer; longer payloads are read directly into their target. A
# longer buffer would copy more of each segment, and a shorter one would read a small answer in two calls.
BUFFER_BYTES: Final = 20 << 10
# The kernel waits for a whole segment in one call, and returns at least this often. Polling for each piece costs more.
TICK_S: Final = 0.1
_TIMEVAL: Final = struct.Struct("ll")
# Limit of unsent bytes in the kernel: these are sent in their order, so results would be delayed by later
# contributions, or precede contributions that others wait for. See docs/decisions/0008-data-path.md.
_UNSENT_BYTES: Final = 128 << 10
# BBR shares a link unevenly among connections that pause often; see there.
_UNEVEN: Final = b"bbr"
_EVEN: Final = b"cubic"

_NOTHING_FOLLOWS: Final = "closed by the peer"

Buffer = bytes | bytearray | memoryview
_Socket = socket.socket | TlsSocket


class SocketChannel:
    """Connected TCP socket with a read buffer. One thread uses it; other threads may call only `shut`."""

    def __init__(self, sock: socket.socket, keepalive_s: float, tick_s: float = TICK_S) -> None:
        """Set the options of the connected socket. `tick_s`: how late a read may notice its deadline."""
        self._sock: _Socket = sock
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self.deadline = float("inf")  # of the current operation, in time.monotonic
        self.on_stall: Callable[[], None] = lambda: None  # called while a send waits for the peer
        sock.setblocking(True)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, seconds in ((socket.SO_RCVTIMEO, tick_s), (socket.SO_SNDTIMEO, TICK_S)):
            sock.setsockopt(socket.SOL_SOCKET, name, _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6)))
        _keep_alive(sock, keepalive_s)
        _share_the_link(sock)
        with contextlib.suppress(OSError):
            self.peer = "{}:{}".format(*sock.getpeername()[:2])

    peer = "a peer that has disconnected"

    def secure(self, tls: TlsIdentity, is_client: bool, deadline: float) -> None:
        """Start TLS; nothing may have been read or sent before. Raises ConnectionLost if that fails.

        `is_client`: whether this side began the connection.
        """
        assert isinstance(self._sock, socket.socket)
        try:
            wrapped = self._sock = tls.wrap(self._sock, is_client)
        except OSError as error:  # the peer has just disconnected
            raise ConnectionLost(error.strerror or str(error)) from error
        wrapped.shake_hands(TICK_S, deadline)

    def peek(self) -> bytes:
        """Wait for the first byte and return it without consuming it. Call this only before `secure`."""
        first = bytearray(1)
        self._received(memoryview(first), socket.MSG_PEEK)
        return bytes(first)

    @property
    def buffered(self) -> memoryview:
        """Return the bytes in the read buffer that were not consumed. Valid until the next call."""
        return self._view[self._start : self._end]

    def held(self) -> int:
        """Return the number of bytes in the read buffer that were not consumed."""
        return self._end - self._start

    def take(self, count: int) -> memoryview:
        """Wait for `count` bytes, at most BUFFER_BYTES, consume and return them. Valid until the next call."""
        if self._end - self._start < count:
            self._await(count)
        self._start += count
        return self._view[self._start - count : self._start]

    def take_if(self, expected: bytes, first: int) -> bool:
        """Consume the next bytes and return True if they equal `expected`; otherwise consume nothing.

        Waits for more than the `first` bytes only if those are as expected.
        """
        total = len(expected)
        if self._end - self._start < total:
            self._await(first)
            if not self._buffer.startswith(expected[:first], self._start, self._end):
                return False
            self._await(total)
        if not self._buffer.startswith(expected, self._start, self._end):
            return False
        self._start += total
        return True

    def take_into(self, target: memoryview) -> None:
        """Wait for bytes to fill `target`."""
        total = len(target)
        at = min(total, self._end - self._start)
        if at:
            target[:at] = self._view[self._start : self._start + at]
            self._start += at
        while at < total:
            at += self._received(target[at:], socket.MSG_WAITALL)
            if at < total:
                self._check_deadline()

    def look(self, wait: bool = False) -> bool:
        """Read available bytes into the buffer; with `wait`, wait one tick for them. Return whether any arrived."""
        self._to_front()
        if self._end == BUFFER_BYTES:
            return False
        try:
            came = self._sock.recv_into(self._view[self._end :], 0, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConnectionLost(_socket_error_reason(error)) from error
        if not came:
            raise ConnectionLost(_NOTHING_FOLLOWS)
        self._end += came
        return True

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send all parts."""
        left = sum(map(len, parts))
        while left:
            try:
                sent = self._sock.sendmsg(parts)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise ConnectionLost(_socket_error_reason(error)) from error
            left -= sent
            if left:
                self._check_deadline()
                self.on_stall()
                parts = _parts_without_sent(parts, sent)

    def shut(self) -> None:
        """Make every call, including waiting ones, fail with ConnectionLost. Any thread may call this."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()

    def fileno(self) -> int:
        return self._sock.fileno()

    def _await(self, count: int) -> None:
        """Wait until the read buffer has `count` bytes, at most BUFFER_BYTES."""
        if self._end - self._start >= count:
            return
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start + count > BUFFER_BYTES:
            self._to_front()
        while True:
            self._end += self._received(self._view[self._end :])
            if self._end - self._start >= count:
                return
            self._check_deadline()

    def _received(self, target: memoryview, flags: int = 0) -> int:
        while True:
            try:
                if came := self._sock.recv_into(target, 0, flags):
                    return came
                raise ConnectionLost(_NOTHING_FOLLOWS)
            except BlockingIOError:
                self._check_deadline()
            except OSError as error:
                raise ConnectionLost(_socket_error_reason(error)) from error

    def _check_deadline(self) -> None:
        if time.monotonic() > self.deadline:
            raise DeadlinePassed

    def _to_front(self) -> None:
        if self._start:
            left = self._end - self._start
            self._buffer[:left] = self._buffer[self._start : self._end]
            self._start, self._end = 0, left


def _socket_error_reason(error: OSError) -> str:
    return "closed" if error.errno == errno.EBADF else error.strerror or str(error)


def _parts_without_sent(parts: Sequence[Buffer], sent: int) -> list[Buffer]:
    """Return `parts` without their first `sent` bytes."""
    left: list[Buffer] = []
    for part in parts:
        if sent < len(part):
            left.append(memoryview(part)[sent:])
        sent = max(sent - len(part), 0)
    return left


def _share_the_link(sock: socket.socket) -> None:
    """Set socket options by which connections of one host share its network link evenly, if the system has them."""
    with contextlib.suppress(OSError):
        if sock.getpeername()[0] == sock.getsockname()[0]:
            return  # both ends are on one host
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        if not hasattr(socket, "TCP_CONGESTION"):  # only Linux has it
            return
        if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(_UNEVEN):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _EVEN)


def _keep_alive(sock: socket.socket, keepalive_s: float) -> None:
    """Enable TCP keepalive, so that middleboxes do not drop an idle connection and a dead peer is noticed."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = max(1, int(keepalive_s))
    for name, value in (("TCP_KEEPIDLE", seconds), ("TCP_KEEPINTVL", seconds), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# Up to this size a frame waits for the next ones, so that a short answer is one packet and wakes its reader once.
_CORKED_BYTES: Final = 8 << 10
_PREFIX: Final = struct.Struct(">BI")  # gRPC's prefix: compressed or not, length


class FrameSender:
    """Queue and flow control of outgoing HTTP/2 frames, for one call at a time."""

    def __init__(self, channel: SocketChannel) -> None:
        self._channel = channel
        self._queue: list[Buffer] = []
        self._queued_bytes = 0
        self._sending = False
        self._frame_bytes = frames.LEAST_FRAME
        self._initial_window = frames.DEFAULT_WINDOW
        self._window = frames.DEFAULT_WINDOW
        self._stream_window = frames.DEFAULT_WINDOW
        self._stream = 0

    # Limits set by the peer

    def begin(self, stream: int) -> None:
        """Begin to send on this stream."""
        self._stream = stream
        self._stream_window = self._initial_window

    def set(self, name: int, value: int) -> None:
        """Apply a setting of the peer: `name` is its HTTP/2 identifier."""
        if name == Http2Setting.INITIAL_WINDOW_SIZE:
            if value > frames.MAX_WINDOW:
                raise ProtocolError(f"the peer set an initial window above {frames.MAX_WINDOW} bytes: {value}")
            self._stream_window += value - self._initial_window
            self._initial_window = value
        elif name == Http2Setting.MAX_FRAME_SIZE:
            if not frames.LEAST_FRAME <= value <= frames.LARGEST_FRAME:
                raise ProtocolError(f"the peer set a frame size of {value} bytes, which HTTP/2 does not allow")
            self._frame_bytes = value

    def widen(self, stream: int, more: int) -> None:
        """Apply a window update of the peer: `more` bytes for `stream`, or for the connection if `stream` is 0."""
        if stream == 0:
            self._window += more
        elif stream == self._stream:
            self._stream_window += more
        if more == 0 or max(self._window, self._stream_window) > frames.MAX_WINDOW:
            raise ProtocolError(f"the peer sent a window update by {more} on stream {stream}, which is not allowed")

    # Output

    def put(self, frame: bytes) -> None:
        """Queue a frame other than DATA."""
        self._queue.append(frame)
        self._queued_bytes += len(frame)

    def put_block(self, block: bytes, end: bool) -> None:
        """Queue a HEADERS frame with `block`; with `end`, these are trailers. `block` must fit one frame."""
        flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
        self.put(frames.http2_frame(Http2FrameType.HEADERS, flags, self._stream, block))

    def send_message(self, head: bytes, payload: Buffer, end: bool, wait: Callable[[], None]) -> None:
        """Send `head` and `payload` as one gRPC message; a short message is queued until `flush`.

        A long `payload` is not copied, and may be reused on return. `end`: whether this is the last message of the
        call. `wait`: called while the peer's windows are full; reads the peer's next frame, and may raise.
        """
        total = frames.PREFIX_BYTES + len(head) + len(payload)
        if total <= min(self._frame_bytes, self._window, self._stream_window):
            self._window -= total
            self._stream_window -= total
            flags = frames.END_STREAM if end else 0
            self._put_data(frames.message_front(flags, self._stream, head, len(payload)), payload)
            return
        front, at = _PREFIX.pack(0, total - frames.PREFIX_BYTES) + head, 0
        while at < total:
            fits = min(total - at, self._frame_bytes, self._window, self._stream_window)
            if fits <= 0:
                self.flush()
                wait()
                continue
            flags = frames.END_STREAM if end and at + fits == total else 0
            self._window -= fits
            self._stream_window -= fits
            start, part = _cut_payload(front, payload, at, at + fits)
            self._put_data(frames.data_head(flags, self._stream, fits) + start, part)
            at += fits

    def flush(self) -> None:
        """Send the queued frames."""
        if self._sending:
            return  # while a send waits, frames of the peer are read, which may call this
        self._sending = True
        try:
            while self._queue:
                queue, self._queue, self._queued_bytes = self._queue, [], 0
                self._channel.send(queue)
        finally:
            self._sending = False

    def _put_data(self, head: bytes, payload: Buffer) -> None:
        if len(head) + len(payload) + self._queued_bytes <= _CORKED_BYTES:
            self.put(head + payload)
            return
        self._queue += (head, payload)
        self.flush()


def _cut_payload(front: bytes, payload: Buffer, start: int, stop: int) -> tuple[bytes, memoryview]:
    """Return bytes `start` to `stop` of `front` + `payload` in two parts: bytes of `front`, and a view of `payload`."""
    length = len(front)
    return front[start:stop], memoryview(payload)[max(start - length, 0) : max(stop - length, 0)]


def stream_prefix_of(data: Buffer) -> tuple[int, int]:
    """Decode gRPC's message prefix. Return the compression flag (1 for a compressed message) and the message's
    length."""
    compressed, length = _PREFIX.unpack_from(data)
    return int(compressed), int(length)
