"""Child processes that run TensorFlow's dispatcher and worker, and are restarted when they die.

Importing TensorFlow takes seconds. Therefore one process, the template, imports it and does nothing else. Every server
is forked from it, and a server that dies is replaced within milliseconds, at the same address, which its clients and
its dispatcher use. A dispatcher writes a journal, which its successor reads.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ringtrain.errors import DataError
from ringtrain.shared.address import host_port
from ringtrain.shared.framing import StreamLineBuffer, line_of
from ringtrain.shared.ports import HeldPorts
from ringtrain.shared.processes import die_with_parent, start_child

# Workers receive new tasks with their heartbeat.
_HEARTBEAT_MS: Final = 200
_POLL_S: Final = 0.05
# A server that ends this soon after its start, this many times in a row, is given up.
_YOUNG_S: Final = 30.0
_TRIES: Final = 5
_PAUSE_S: Final = 0.5
_TEMPLATE: Final = "ringtrain_data_service.tensorflow.servers"


@dataclass(frozen=True)
class TfDataServer:
    """Settings of one server. `kind`: `dispatcher` or `worker`. `dispatcher`: `host:port` of a worker's dispatcher.
    `work_dir`: directory for a dispatcher's journal."""

    kind: str
    host: str
    port: int
    timeout_s: int
    dispatcher: str = ""
    work_dir: str = ""

    @property
    def address(self) -> str:
        return host_port(self.host, self.port)


def start_tf_data_server(server: TfDataServer) -> Any:
    """Start the server in this process. Raises TensorFlow's errors."""
    from tensorflow.data.experimental import service

    if server.kind == "dispatcher":
        journal = {"work_dir": server.work_dir, "fault_tolerant_mode": True} if server.work_dir else {}
        return service.DispatchServer(service.DispatcherConfig(port=server.port, **journal))
    config = service.WorkerConfig(
        dispatcher_address=server.dispatcher,
        worker_address=server.address,
        port=server.port,
        heartbeat_interval_ms=_HEARTBEAT_MS,
        dispatcher_timeout_ms=server.timeout_s * 1000,
    )
    return service.WorkerServer(config)


class TfDataServerProcesses:
    """Starter and supervisor of TensorFlow's servers. `close` ends them.

    Each server is forked from a template process, which has imported TensorFlow. `forked`: whether the template is a
    fork of this process; this process must then have one thread, and have imported TensorFlow but not used it.
    Otherwise the template is a new process. `timeout_s`: seconds for a server to start.
    """

    def __init__(self, timeout_s: int, *, forked: bool) -> None:
        self._timeout_s = timeout_s
        self._held = HeldPorts()
        self._directory = tempfile.TemporaryDirectory(prefix="ringtrain-dispatcher-")
        self._ready: set[str] = set()
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._lines = StreamLineBuffer()
        self._pid = _forked_tf_data_server(ours, theirs) if forked else _started_tf_data_server(theirs)
        theirs.close()

    def port(self, wanted: int = 0) -> int:
        """Reserve and return a port for a server until it starts: `wanted`, or any free port if that is 0. Raises
        PortTaken if another process uses it."""
        return self._held.take(wanted, 1)[0]

    def dispatcher(self, host: str, port: int | None = None) -> str:
        """Start a dispatcher; return its `host:port` when it listens. Raises DataError after the timeout."""
        return self._start(self._new("dispatcher", host, port, work_dir=self._directory.name))

    def worker(self, host: str, dispatcher: str, port: int | None = None) -> str:
        """Start a worker of `dispatcher` in place of an earlier one; return the worker's `host:port` when it
        listens."""
        return self._start(self._new("worker", host, port, dispatcher=dispatcher))

    def check(self) -> list[str]:
        """Return a log line for each server restarted since the last call. Raises DataError if one cannot run."""
        return [
            f"the data service's {m['kind']} died {m['how']} and was started again" for m in self._read_messages(0.0)
        ]

    def close(self) -> None:
        """End all servers and the template."""
        self._socket.close()
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self._held.release()
        self._directory.cleanup()

    def _new(self, kind: str, host: str, port: int | None, **further: str) -> TfDataServer:
        return TfDataServer(kind, host, self.port() if port is None else port, self._timeout_s, **further)

    def _start(self, server: TfDataServer) -> str:
        self._held.release([server.port])
        self._ready.discard(server.kind)
        self._socket.sendall(line_of(asdict(server)))
        end = time.monotonic() + self._timeout_s
        while server.kind not in self._ready:
            if time.monotonic() >= end:
                raise DataError(
                    f"the data service's {server.kind} at {server.address} has not started within {self._timeout_s} s"
                    + (f" (its dispatcher is {server.dispatcher})" if server.dispatcher else "")
                    + "; compute_worker's --timeout sets the time"
                )
            self._read_messages(_POLL_S)
        return server.address

    def _read_messages(self, within_s: float) -> list[dict[str, Any]]:
        """Return the template process's messages about restarted servers, and record servers that are ready.

        Raises DataError if that process has ended or has given up restarting a server.
        """
        messages = []
        while select.select([self._socket], [], [], within_s)[0]:
            came = self._socket.recv(1 << 16)
            if not came:
                raise DataError("the process that starts the data service's servers has ended; see its output")
            for message in map(json.loads, self._lines.feed(came)):
                if message["event"] == "failed":
                    raise DataError(
                        f"the data service's {message['kind']} died {message['how']}, {_TRIES} times in a row "
                        f"within {_YOUNG_S:g} s of its start; see its output"
                    )
                if message["event"] == "ready":
                    self._ready.add(message["kind"])
                else:
                    messages.append(message)
            within_s = 0.0
        return messages


def _forked_tf_data_server(ours: socket.socket, theirs: socket.socket) -> int:
    assert threading.active_count() == 1, "a process that is to be forked has one thread"
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent(parent)()
            ours.close()
            _TfDataServerTemplate(theirs).run()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def _started_tf_data_server(theirs: socket.socket) -> int:
    command = [sys.executable, "-m", _TEMPLATE, str(theirs.fileno())]
    process = start_child(command, os.environ, pass_fds=(theirs.fileno(),))
    process.returncode = 0  # reaped by its pid
    return process.pid


@dataclass
class _RunningTfDataServer:
    """State of a server that the template has started. `quick_ends`: consecutive deaths soon after a start."""

    server: TfDataServer
    pid: int = 0
    started: float = 0.0
    quick_ends: int = 0
    again_at: float = 0.0


@dataclass
class _TfDataServerTemplate:
    """Template process from which servers are forked. It ends, with the servers, when its parent closes the socket."""

    socket: socket.socket
    running: dict[str, _RunningTfDataServer] = field(default_factory=dict)
    lines: StreamLineBuffer = field(default_factory=StreamLineBuffer)

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):  # signals end it; its servers end with it
            signal.signal(number, signal.SIG_DFL)
        while True:
            if select.select([self.socket], [], [], _POLL_S)[0]:
                came = self.socket.recv(1 << 16)
                if not came:
                    os._exit(0)
                for line in self.lines.feed(came):
                    self._take(TfDataServer(**json.loads(line)))
            for kind in list(self.running):
                self._check_server(self.running[kind])

    def _take(self, server: TfDataServer) -> None:
        before = self.running.get(server.kind)
        if before is not None and before.pid:
            os.kill(before.pid, signal.SIGKILL)
            os.waitpid(before.pid, 0)
        self.running[server.kind] = entry = _RunningTfDataServer(server)
        self._fork(entry)

    def _check_server(self, entry: _RunningTfDataServer) -> None:
        if not entry.pid:
            if time.monotonic() >= entry.again_at:
                self._fork(entry)
            return
        pid, status = os.waitpid(entry.pid, os.WNOHANG)
        if not pid:
            return
        lived_s = time.monotonic() - entry.started
        entry.pid = 0
        entry.quick_ends = entry.quick_ends + 1 if lived_s < _YOUNG_S else 1
        event = "died" if entry.quick_ends < _TRIES else "failed"
        self._send_message(event, entry.server.kind, how=_server_exit_text(status))
        if event == "failed":
            del self.running[entry.server.kind]
        entry.again_at = time.monotonic() + (_PAUSE_S if entry.quick_ends > 1 else 0.0)

    def _fork(self, entry: _RunningTfDataServer) -> None:
        template = os.getpid()
        entry.started = time.monotonic()
        entry.pid = os.fork()
        if entry.pid:
            return
        try:
            die_with_parent(template)()
            server = start_tf_data_server(entry.server)
            self._send_message("ready", entry.server.kind)
            server.join()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)

    def _send_message(self, event: str, kind: str, **more: Any) -> None:
        with suppress(OSError):
            self.socket.sendall(line_of({"event": event, "kind": kind, **more}))


def _server_exit_text(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"with exit code {os.waitstatus_to_exitcode(status)}"


if __name__ == "__main__":
    import tensorflow  # noqa: F401

    _TfDataServerTemplate(socket.socket(fileno=int(sys.argv[1]))).run()
