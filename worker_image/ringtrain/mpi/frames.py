"""Messages on a Unix socket: one JSON object behind its length; open files may go along.

Of the standard library only, and little of it: the two programs that mpirun starts many of import it.
"""

import array
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
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    connection.sendmsg([_LENGTH.pack(len(data))], rights)
    connection.sendall(data)


def receive_frame(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """One message and the files that came with it, now the caller's; None when the other side is gone."""
    files = array.array("i")
    try:
        head, rights, _, _ = connection.recvmsg(_LENGTH.size, socket.CMSG_SPACE(_MOST_FILES * files.itemsize))
        for level, kind, data in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                files.frombytes(data[: len(data) - len(data) % files.itemsize])
        head += _receive(connection, _LENGTH.size - len(head)) if head else b""
        body = _receive(connection, _LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""
    except ConnectionError:
        return None
    return (json.loads(body), list(files)) if body else None


def _receive(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            return b""
        data += part
    return data
