"""HTTP/2 connection (RFC 9113), as client or server, that carries one gRPC call at a time."""

from typing import Final

from ringtrain._core.transport import frames
from ringtrain._core.transport.base import TransportStatus
from ringtrain._core.transport.channel import BUFFER_BYTES, Buffer, FrameSender, SocketChannel
from ringtrain._core.transport.frames import (
    MAX_BLOCK_BYTES,
    Fields,
    Http2BlockReader,
    Http2ErrorCode,
    Http2FrameHead,
    Http2FrameType,
    Http2Setting,
    response_block,
    trailer_block,
)
from ringtrain.shared.connection_errors import ProtocolError, StreamReset

# Bytes after which a sender checks for frames of the peer, such as a reset: each check is a system call that usually
# finds nothing. While it waits for the peer it checks all the time.
_UNHEARD_BYTES: Final = 8 << 20


class Http2Connection:
    """Client's or server's side of an HTTP/2 connection. `window`: bytes that the peer may send without an update.

    Used by one thread at a time. Methods raise ConnectionLost, DeadlinePassed, ProtocolError; and StreamReset if the
    peer has cancelled the call.
    """

    def __init__(self, channel: SocketChannel, is_client: bool, window: int = frames.MAX_WINDOW) -> None:
        self.channel = channel
        self._is_client = is_client
        self._window = window
        self._blocks = Http2BlockReader()
        self._sender = FrameSender(channel)
        self.going_away = False
        # Bytes read since the last window update: of the connection, of the stream.
        self._owed = [0, 0]
        self._newest = 0  # newest stream of the peer
        self._unheard = 0  # bytes sent since the last check for frames of the peer
        self._begin(0)
        channel.on_stall = self.look
        self._greet()

    def _begin(self, stream: int) -> None:
        self.stream = stream
        self._newest = max(self._newest, stream)
        self.is_open = stream > 0
        self.was_reset = False
        self.blocks: list[Fields] = []  # header blocks received on the stream
        self.has_ended = False  # the stream ends after `_data_left`
        self._data_left = self._padding_left = 0
        self._owed[1] = 0
        self._sender.begin(stream)

    def _greet(self) -> None:
        limits = {
            Http2Setting.INITIAL_WINDOW_SIZE: self._window,
            Http2Setting.MAX_HEADER_LIST_SIZE: MAX_BLOCK_BYTES,
        }
        if self._is_client:
            own = {Http2Setting.ENABLE_PUSH: 0, Http2Setting.MAX_FRAME_SIZE: frames.LARGEST_FRAME}
            self._sender.put(frames.PREFACE)
        else:
            own = {Http2Setting.MAX_CONCURRENT_STREAMS: 1}
        self._sender.put(frames.http2_settings(limits | own))
        if self._window > frames.DEFAULT_WINDOW:
            self._sender.put(frames.window_update(0, self._window - frames.DEFAULT_WINDOW))
        self._sender.flush()

    # Output

    def open_stream(self, block: bytes) -> None:
        """Begin the next call with the request headers `block`. Only a client calls this."""
        self._begin(self.stream + 2 if self.stream else 1)
        self._sender.put_block(block, end=False)

    def send_block(self, block: bytes, end: bool) -> None:
        """Queue the headers `block`; with `end`, these are the call's trailers."""
        self._sender.put_block(block, end)

    def end_call(self) -> None:
        """End the current call on this side; frames of it that still arrive are ignored."""
        self.is_open = self.was_reset = False

    def send_message(self, head: bytes, payload: Buffer, end: bool = False) -> None:
        """Send `head` and `payload` as one gRPC message; a short message is queued until `flush`.

        A long `payload` is not copied, and may be reused on return. `end`: whether this is the last message of the
        call.
        """
        self._sender.send_message(head, payload, end, self._await_frame)
        self._unheard += len(payload)
        if self._unheard > _UNHEARD_BYTES:
            self._unheard = 0
            self.look()
        if self.was_reset:
            raise StreamReset

    def flush(self) -> None:
        """Send the queued frames."""
        self._sender.flush()

    def go_away(self, code: Http2ErrorCode, reason: str) -> None:
        self._reply(frames.http2_goaway(self.stream, code, reason))

    def _reply(self, frame: bytes) -> None:
        self._sender.put(frame)
        self._sender.flush()

    def _await_frame(self) -> None:
        self._read_frame()
        if self.was_reset:
            raise StreamReset

    # Input

    def look(self) -> None:
        """Process the frames of the peer that have arrived, without waiting.

        Stops at unread data; and after a reset, because the following frames belong to the next call.
        """
        while not (self.was_reset or self._data_left or self._padding_left) and self._has_frame():
            self._read_frame()

    def read_data(self, target: memoryview) -> int:
        """Fill `target` with data of the call. Return the number of bytes, fewer than requested only at the end."""
        at = 0
        while at < len(target):
            if self._data_left == 0 and not self._next_data():
                return at
            count = min(self._data_left, len(target) - at)
            self.channel.take_into(target[at : at + count])
            self._data_left -= count
            at += count
        return at

    def read_message(self, head: bytes, target: memoryview) -> bool:
        """Read the next message into `target` if it is one frame of `head` and `len(target)` bytes, and return True.

        Ringtrain's peers send messages in this form, with headers before the first message. For a message in another
        form consume no data and return False; `read_data` reads any form.
        """
        if self._data_left or self._padding_left or self.has_ended:
            return False
        if not self.blocks and not self._took_block(frames.END_HEADERS, response_block()):
            return False
        if not self.channel.take_if(frames.message_front(0, self.stream, head, len(target)), frames.HEADER_BYTES):
            return False
        self._grant(frames.PREFIX_BYTES + len(head) + len(target), True)
        self.channel.take_into(target)
        return True

    def _took_block(self, flags: int, block: bytes) -> bool:
        """Consume the next frame and return True if it has exactly the header block `block`; otherwise return False."""
        frame = frames.http2_frame(Http2FrameType.HEADERS, flags, self.stream, block)
        if not self.channel.take_if(frame, frames.HEADER_BYTES):
            return False
        self.blocks.append(self._blocks.read(block))
        return True

    def take_rest(self) -> bytes | None:
        """Wait for the rest of the call's data and return it; None unless it is one frame that fits the buffer."""
        if not self.has_ended or self._padding_left or self._data_left > BUFFER_BYTES:
            return None
        count, self._data_left = self._data_left, 0
        return bytes(self.channel.take(count))

    def _next_data(self) -> bool:
        """Read frames until a frame has data. Return False if the call ended first."""
        while self._data_left == 0:
            self._skip(self._padding_left)
            self._padding_left = 0
            if self.has_ended:
                return False
            self._await_frame()
        return True

    def at_end(self) -> bool:
        """Wait for the end of the call. Return False if more data comes instead."""
        if self._data_left or self._padding_left or self.has_ended or not self.blocks:
            return self._data_left == 0 and not self._next_data()
        if self._took_block(frames.END_HEADERS | frames.END_STREAM, trailer_block(TransportStatus.OK, "", only=False)):
            self.has_ended = True
        return not self._next_data()

    def _has_frame(self) -> bool:
        """Return whether a frame has arrived completely; first read what is available, without waiting.

        DATA needs only its header, because its payload is read separately.
        """
        if not self._is_there(frames.HEADER_BYTES):
            return False
        head = frames.http2_head_of(self.channel.buffered)
        if head.kind == Http2FrameType.DATA:
            return True
        if head.length > MAX_BLOCK_BYTES:
            raise ProtocolError(
                f"the peer sent frame type {head.kind} with {head.length} bytes; expected at most {MAX_BLOCK_BYTES}"
            )
        return self._is_there(frames.HEADER_BYTES + head.length)

    def _is_there(self, count: int) -> bool:
        return self.channel.held() >= count or (self.channel.look() and self.channel.held() >= count)

    def _read_frame(self) -> None:
        head = frames.http2_head_of(self.channel.take(frames.HEADER_BYTES))
        if head.kind == Http2FrameType.DATA:
            self._on_data(head)
        elif head.kind in (Http2FrameType.HEADERS, Http2FrameType.CONTINUATION, Http2FrameType.PUSH_PROMISE):
            self._on_block(head)
        else:
            if head.length > MAX_BLOCK_BYTES:
                raise ProtocolError(
                    f"the peer sent frame type {head.kind} with {head.length} bytes; expected at most {MAX_BLOCK_BYTES}"
                )
            self._on_control(head, bytes(self.channel.take(head.length)))

    def _on_data(self, head: Http2FrameHead) -> None:
        if head.stream == 0 or head.stream > self._newest:
            raise ProtocolError(f"the peer sent data on stream {head.stream}, but the newest stream is {self._newest}")
        mine = head.stream == self.stream and self.is_open and not self.has_ended
        if mine and not self.blocks:
            raise ProtocolError("the peer sent data before headers")
        self._grant(head.length, mine)
        if not mine:  # of a cancelled call
            self._skip(head.length)
            return
        padding = 0
        if head.flags & frames.PADDED:
            padding = self.channel.take(1)[0] + 1
            if padding > head.length:
                raise ProtocolError("the peer sent padding longer than its frame")
        self._data_left, self._padding_left = head.length - padding, max(padding - 1, 0)
        self.has_ended = bool(head.flags & frames.END_STREAM)

    def _grant(self, count: int, mine: bool) -> None:
        """Count received bytes, and send the peer a window update when half of the window is used.

        `mine`: whether the bytes belong to the current call, rather than to a cancelled one.
        """
        owed = self._owed
        owed[0] += count
        if mine:
            owed[1] += count
        if max(owed) < self._window // 2:
            return
        for place, stream in enumerate((0, self.stream)):
            if owed[place] >= self._window // 2:
                self._reply(frames.window_update(stream, owed[place]))
                owed[place] = 0

    def _on_block(self, head: Http2FrameHead) -> None:
        if head.kind != Http2FrameType.HEADERS or head.stream % 2 == 0:
            raise ProtocolError(f"the peer sent a frame of type {head.kind} on stream {head.stream}; expected HEADERS")
        fields = self._fields(head)
        if head.stream > self._newest:
            self._newest = head.stream
            if self._is_client:
                raise ProtocolError(f"the peer sent headers on stream {head.stream}, which is not open")
            if self.is_open:  # one call at a time: gRPC repeats the request
                self._reply(frames.http2_reset(head.stream, Http2ErrorCode.REFUSED_STREAM))
            else:
                self._begin(head.stream)
        if head.stream == self.stream and self.is_open:
            self.blocks.append(fields)
            self.has_ended = self.has_ended or bool(head.flags & frames.END_STREAM)

    def _fields(self, head: Http2FrameHead) -> Fields:
        block = self._fragment(head)
        while not head.flags & frames.END_HEADERS:
            head = frames.http2_head_of(self.channel.take(frames.HEADER_BYTES))
            if head.kind != Http2FrameType.CONTINUATION:
                raise ProtocolError("the peer sent a header block that is not continued")
            block += self._fragment(head, len(block))
        return self._blocks.read(block)

    def _fragment(self, head: Http2FrameHead, before: int = 0) -> bytes:
        if head.length + before > MAX_BLOCK_BYTES:
            raise ProtocolError(f"the peer sent headers of more than {MAX_BLOCK_BYTES} bytes")
        payload = bytes(self.channel.take(head.length))
        if head.kind == Http2FrameType.CONTINUATION:
            return payload
        padding = payload[0] if head.flags & frames.PADDED and payload else 0
        start = (1 if head.flags & frames.PADDED else 0) + (5 if head.flags & frames.WITH_PRIORITY else 0)
        return payload[start : len(payload) - padding]

    def _on_control(self, head: Http2FrameHead, payload: bytes) -> None:
        if len(payload) % _UNITS.get(head.kind, 1) or (head.kind in _ONE_UNIT and len(payload) != _UNITS[head.kind]):
            raise ProtocolError(f"the peer sent a frame of type {head.kind} with a wrong length, {len(payload)} bytes")
        if head.kind == Http2FrameType.SETTINGS and not head.flags & frames.ACK:
            for name, value in frames.http2_settings_of(payload):
                self._sender.set(name, value)
            self._reply(frames.http2_frame(Http2FrameType.SETTINGS, frames.ACK, 0))
        elif head.kind == Http2FrameType.PING and not head.flags & frames.ACK:
            self._reply(frames.http2_frame(Http2FrameType.PING, frames.ACK, 0, payload))
        elif head.kind == Http2FrameType.WINDOW_UPDATE:
            self._sender.widen(head.stream, frames.http2_word_of(payload))
        elif head.kind == Http2FrameType.RST_STREAM and head.stream == self.stream and self.is_open:
            self.was_reset = True
        elif head.kind == Http2FrameType.GOAWAY:
            self.going_away = True

    def _skip(self, count: int) -> None:
        while count:
            count -= len(self.channel.take(min(count, BUFFER_BYTES)))


# Lengths of control frames: multiples, or exact ones.
_UNITS: Final[dict[int, int]] = {
    Http2FrameType.PRIORITY: 5,
    Http2FrameType.RST_STREAM: 4,
    Http2FrameType.SETTINGS: 6,
    Http2FrameType.PING: 8,
    Http2FrameType.WINDOW_UPDATE: 4,
}
_ONE_UNIT: Final = frozenset(_UNITS) - {Http2FrameType.SETTINGS}
