"""Messages on a Unix socket: one JSON object behind its length; open files may go along.

Of the standard library only, and little of it: the two programs that mpirun starts many of import it.
"""

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("!I")
_MOST_FILES = 8


def send_frame(connection: socket.socket, message: dict[str, Any], files: Sequence[int] = ()) -> None:
    """Send `message`, and duplicates of the open `files`."""
    data = json.dumps(message).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(data))], files)
    connection.sendall(data)


def receive_frame(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """One message and the files that came with it, now the caller's; None when the other side is gone."""
    try:
        head, files, _, _ = socket.recv_fds(connection, _LENGTH.size, _MOST_FILES)
        head += _receive(connection, _LENGTH.size - len(head)) if head else b""
        body = _receive(connection, _LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""
    except ConnectionError:
        return None
    return (json.loads(body), files) if body else None


def _receive(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            return b""
        data += part
    return data
