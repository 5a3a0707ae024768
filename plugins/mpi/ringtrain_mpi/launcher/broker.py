"""Unix socket server in the launcher to which `ringtrain rsh` connects: asks the worker's agent to start a daemon."""

import contextlib
import logging
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ringtrain.shared.contract import EXIT_BAD_CONFIGURATION
from ringtrain.shared.framing import receive_message, send_message
from ringtrain_mpi.launcher.remote import DaemonNotStarted, MpirunDaemonOutput, MpirunRemoteDaemon
from ringtrain_mpi.listener import MpiSocketListener
from ringtrain_mpi.rsh_client import FAILED

log = logging.getLogger(__name__)

_NOT_WRAPPED = (
    "the launcher's command starts another mpirun than the one in its PATH; write mpirun without "
    "its folder, and do not change PATH (a login shell, bash -l, replaces it)"
)
_CHUNK = 64 << 10
_LAST_BYTES = 2000
_CREDENTIALS = struct.Struct("3i")


class MpiDaemonBroker:
    """Server for `ringtrain rsh` on the Unix socket `path`. `dial(host, command)` returns a client of the daemon.

    `dial` raises DaemonNotStarted for a host that is not a worker. `on_failed(host, code, output tail)` is called for a
    daemon of mpirun that failed. Processes of other users are refused.
    """

    def __init__(
        self,
        path: Path,
        dial: Callable[[str, str], MpirunRemoteDaemon],
        on_failed: Callable[[str, int, str], None] = lambda *_: None,
    ) -> None:
        self._dial = dial
        self._on_failed = on_failed
        self._lock = threading.Lock()
        self._running: set[MpirunRemoteDaemon] = set()
        self._listener = MpiSocketListener(path, self._serve, "ringtrain-rsh")

    def close(self) -> None:
        """Stop accepting connections, and end all running daemons."""
        self._listener.close()
        with self._lock:
            running = list(self._running)
        for daemon in running:
            daemon.cancel()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            if not _is_mpirun_user(connection):
                log.warning("refused a connection to the rsh socket: the process belongs to another user")
                return
            first = receive_message(connection)
            if first is None:
                return
            message, files = first
            try:
                code, error = self._run(connection, message, files)
            finally:
                for file in files:
                    os.close(file)
            with contextlib.suppress(OSError):  # the client was killed
                send_message(connection, {"exit_code": code, "error": error})

    def _run(self, connection: socket.socket, message: Mapping[str, Any], files: list[int]) -> tuple[int, str]:
        """Run a daemon with the client's stdin, stdout and stderr; return its exit code and "", or 255 and an error."""
        host, command = str(message["host"]), str(message["command"])
        if message["is_daemon"] and not message["wrapped"]:  # its ranks would never check in
            self._on_failed(host, EXIT_BAD_CONFIGURATION, _NOT_WRAPPED)
            return FAILED, _NOT_WRAPPED
        stdin, stdout, stderr = files
        over_in, over_out = os.pipe()
        try:
            daemon = self._dial(host, command)
            with self._lock:
                self._running.add(daemon)
            helpers = [
                threading.Thread(target=_follow_mpirun_stdin, args=(daemon, stdin, over_in), daemon=True),
                threading.Thread(target=_follow_mpirun_client, args=(daemon, connection, over_in), daemon=True),
            ]
            for helper in helpers:
                helper.start()
            output_tail = _MpiStderrTail(stderr)
            try:
                code = daemon.run(MpirunDaemonOutput(_mpi_output_writer(stdout), output_tail.write))
                if code != 0 and message["is_daemon"]:
                    self._on_failed(host, code, output_tail.text())
                return code, ""
            finally:
                os.write(over_out, b".")
                for helper in helpers:
                    helper.join()
                with self._lock:
                    self._running.discard(daemon)
        except DaemonNotStarted as exc:
            if message["is_daemon"]:
                log.warning("cannot run mpirun's daemon on %s: %s", host, exc)
                self._on_failed(host, FAILED, str(exc))
            return FAILED, str(exc)
        finally:
            os.close(over_in)
            os.close(over_out)


def _is_mpirun_user(connection: socket.socket) -> bool:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())


def _mpi_output_writer(file: int) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        view = memoryview(data)
        with contextlib.suppress(OSError):  # the client has stopped reading
            while view:
                view = view[os.write(file, view) :]

    return write


class _MpiStderrTail:
    """Writer that copies stderr to `file` and stores the last bytes."""

    def __init__(self, file: int) -> None:
        self._write = _mpi_output_writer(file)
        self._end = b""

    def write(self, data: bytes) -> None:
        self._write(data)
        self._end = (self._end + data)[-_LAST_BYTES:]

    def text(self) -> str:
        """Return the last line that was written."""
        lines = self._end.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""


def _follow_mpirun_stdin(daemon: MpirunRemoteDaemon, stdin: int, over: int) -> None:
    """Copy `stdin` to the daemon until end of file, or until `over` becomes readable."""
    poll = select.poll()
    poll.register(stdin, select.POLLIN | select.POLLHUP)
    poll.register(over, select.POLLIN)
    while True:
        ready = {file for file, _ in poll.poll()}
        if over in ready:
            return
        try:
            data = os.read(stdin, _CHUNK)
        except OSError:
            data = b""
        daemon.feed(data)
        if not data:
            return


def _follow_mpirun_client(daemon: MpirunRemoteDaemon, connection: socket.socket, over: int) -> None:
    """Forward the client's signals to the daemon until `over` is readable. End the daemon if the client disconnects."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(over, select.POLLIN)
    while over not in {file for file, _ in poll.poll()}:
        frame = receive_message(connection)
        if frame is None:
            daemon.cancel()
            return
        daemon.signal(int(frame[0]["signal"]))
