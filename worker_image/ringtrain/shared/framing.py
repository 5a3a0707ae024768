"""Messages on a stream of bytes: each behind its length, with open files along if need be, or each on a line.

Of the standard library only, and little of it: the two programs that mpirun starts many of import it.
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
    """Send `data`, and duplicates of the open `files`, on a Unix socket."""
    socket.send_fds(connection, [_LENGTH.pack(len(data))], files)
    connection.sendall(data)


def receive_frame(connection: socket.socket) -> tuple[bytes, list[int]] | None:
    """One frame and the files that came with it, now the caller's; None when the other side is gone."""
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
    """Send `message` as JSON, and duplicates of the open `files`, on a Unix socket."""
    send_frame(connection, json.dumps(message).encode(), files)


def receive_message(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """One message and the files that came with it, now the caller's; None when the other side is gone."""
    frame = receive_frame(connection)
    return None if frame is None else (json.loads(frame[0]), frame[1])


def line_of(message: Mapping[str, Any]) -> bytes:
    """`message` as JSON in a line, for whoever reads lines."""
    return json.dumps(message).encode() + b"\n"


class StreamLineBuffer:
    """What has come of a stream, cut into lines; `rest`: of one that is not whole."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        return lines
