"""Unix socket server that handles each connection in a separate thread."""

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path


class MpiSocketListener:
    """Server that calls `serve(connection)` in a thread for each connection to the Unix socket `path` of this user."""

    def __init__(self, path: Path, serve: Callable[[socket.socket], None], thread_name: str) -> None:
        self._serve = serve
        self._thread_name = thread_name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o600)
        self._socket.listen(128)
        threading.Thread(target=self._accept, name=thread_name, daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection,), name=self._thread_name, daemon=True).start()
