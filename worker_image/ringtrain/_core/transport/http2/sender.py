"""The half of an HTTP/2 connection that sends: frames wait for each other, and data for the peer's windows."""

import struct
from collections.abc import Callable
from typing import Final

from ringtrain._core.transport.http2 import frames
from ringtrain._core.transport.http2.channel import Buffer, Channel
from ringtrain._core.transport.http2.frames import FrameType, Setting
from ringtrain.shared.connection_errors import ProtocolError

# Up to this a frame waits for what follows it, so that a short answer is one packet and wakes its reader once.
_CORKED_BYTES: Final = 8 << 10
_PREFIX: Final = struct.Struct(">BI")  # gRPC's: compressed or not, length


class Sender:
    """Sends the frames of one call at a time."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._queue: list[Buffer] = []
        self._queued_bytes = 0
        self._sending = False
        self._frame_bytes = frames.LEAST_FRAME
        self._initial_window = frames.DEFAULT_WINDOW
        self._window = frames.DEFAULT_WINDOW
        self._stream_window = frames.DEFAULT_WINDOW
        self._stream = 0

    # What the peer allows

    def begin(self, stream: int) -> None:
        """What follows belongs to this stream."""
        self._stream = stream
        self._stream_window = self._initial_window

    def set(self, name: int, value: int) -> None:
        """Heed a setting of the peer."""
        if name == Setting.INITIAL_WINDOW_SIZE:
            if value > frames.MAX_WINDOW:
                raise ProtocolError(f"an initial window of {value} bytes")
            self._stream_window += value - self._initial_window
            self._initial_window = value
        elif name == Setting.MAX_FRAME_SIZE:
            if not frames.LEAST_FRAME <= value <= frames.LARGEST_FRAME:
                raise ProtocolError(f"a frame size of {value} bytes")
            self._frame_bytes = value

    def widen(self, stream: int, more: int) -> None:
        """Heed a window update of the peer."""
        if stream == 0:
            self._window += more
        elif stream == self._stream:
            self._stream_window += more
        if more == 0 or max(self._window, self._stream_window) > frames.MAX_WINDOW:
            raise ProtocolError(f"a window update by {more} on stream {stream}")

    # What is sent

    def put(self, frame: bytes) -> None:
        """Queue a frame that is not data."""
        self._queue.append(frame)
        self._queued_bytes += len(frame)

    def put_block(self, block: bytes, end: bool) -> None:
        """Queue headers, or trailers if they are the `end`. `block`: shorter than the shortest largest frame."""
        flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
        self.put(frames.frame(FrameType.HEADERS, flags, self._stream, block))

    def send_message(self, head: bytes, payload: Buffer, end: bool, wait: Callable[[], None]) -> None:
        """Send `head` and `payload` as one message of gRPC; a short one waits for `flush`.

        A long `payload` is not copied, and is no longer needed on return. `wait`: reads what the peer says next,
        for when its windows are full; may raise.
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
            start, part = _cut(front, payload, at, at + fits)
            self._put_data(frames.data_head(flags, self._stream, fits) + start, part)
            at += fits

    def flush(self) -> None:
        """Send what waits."""
        if self._sending:
            return  # while a send waits, frames of the peer are read, and they may ask for an answer
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


def _cut(front: bytes, payload: Buffer, start: int, stop: int) -> tuple[bytes, memoryview]:
    """Bytes `start` to `stop` of `front` and `payload` behind each other: what they have of each."""
    length = len(front)
    return front[start:stop], memoryview(payload)[max(start - length, 0) : max(stop - length, 0)]


def prefix_of(data: Buffer) -> tuple[int, int]:
    """Whether a message is compressed, and how long it is: what gRPC writes in front of it."""
    compressed, length = _PREFIX.unpack_from(data)
    return int(compressed), int(length)
