"""Messages on a byte stream: with a length prefix and optionally open files, or as lines of JSON.

Uses only the standard library, and little of it, because two programs that mpirun starts in large numbers import it.
"""

import contextlib
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

_LENGTH = struct.Struct("<Q")
_MOST_FILES = 8


def send_frame(connection: socket.socket, data: bytes, files: Sequence[int] = ()) -> None:
    """Send `data` with its length, and duplicates of the file descriptors `files`, on a Unix socket."""
    socket.send_fds(connection, [_LENGTH.pack(len(data))], files)
    connection.sendall(data)


def receive_frame(connection: socket.socket) -> tuple[bytes, list[int]] | None:
    """Receive data and file descriptors sent by `send_frame`; None if the other side has closed the socket."""
    files: list[int] = []
    body = None
    with contextlib.suppress(ConnectionError):
        head, files, _, _ = socket.recv_fds(connection, _LENGTH.size, _MOST_FILES)
        rest = _receive(connection, _LENGTH.size - len(head)) if head else None
        body = None if rest is None else _receive(connection, _LENGTH.unpack(head + rest)[0])
    if body is None:
        for file in files:
            os.close(file)
        return None
    return body, files


def _receive(connection: socket.socket, length: int) -> bytes | None:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(min(length - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)


def send_message(connection: socket.socket, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """Send `message` as JSON, and duplicates of the file descriptors `files`, on a Unix socket."""
    send_frame(connection, json.dumps(message).encode(), files)


def receive_message(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Receive a message and file descriptors sent by `send_message`; None if the socket was closed."""
    frame = receive_frame(connection)
    return None if frame is None else (json.loads(frame[0]), frame[1])


def line_of(message: Mapping[str, Any]) -> bytes:
    """Return `message` as one line of JSON."""
    return json.dumps(message).encode() + b"\n"


class StreamLineBuffer:
    """Buffer that splits received bytes into lines. `rest`: the incomplete last line."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Add `data`, and return the lines that are now complete, without their newlines."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        return lines
