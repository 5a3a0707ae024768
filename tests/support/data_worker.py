"""Data workers as processes of a test that can be killed, stopped and replaced."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ringtrain.shared.processes import start_child
from ringtrain.shared.secrets import Secrets
from ringtrain_data_service.server import DataWorkerServer

HERE = Path(__file__).parent


class DataWorkers:
    """Data workers without a launcher, and the file that ranks read."""

    def __init__(self, directory: Path, count: int, *, slots: int = 1, timeout_s: float = 4.0) -> None:
        self.file = directory / "workers.json"
        self._slots = slots
        self._timeout_s = timeout_s
        # One thread starts all and stays alive: a process ends with the thread that started it.
        self._starter = ThreadPoolExecutor(1)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._entries: dict[int, dict[str, Any]] = {}
        started = [self._start() for _ in range(count)]
        for index, process in enumerate(started):
            self._enter(index, process)
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables of a rank."""
        return {
            "RINGTRAIN_DATA_WORKERS_FILE": str(self.file),
            "RINGTRAIN_TIMEOUT": f"{self._timeout_s:g}",
            "RINGTRAIN_STALL_TIMEOUT": "60",
        }

    def kill(self, index: int) -> None:
        """Send SIGKILL, and remove it from the file."""
        self.processes[index].kill()
        self.processes[index].wait()

    def stop(self, index: int) -> None:
        """Send SIGSTOP."""
        self.processes[index].send_signal(signal.SIGSTOP)

    def resume(self, index: int) -> None:
        """Send SIGCONT."""
        self.processes[index].send_signal(signal.SIGCONT)

    def replace(self, index: int) -> None:
        """Start another process, at another address, in place of a killed one."""
        if self.processes[index].poll() is None:
            self.kill(index)
        self._enter(index, self._start())
        self._write()

    def only(self, indices: Sequence[int]) -> None:
        """Write only these into the file."""
        entries = [self._entries[index] for index in indices]
        self._write(entries)

    def close(self) -> None:
        self._starter.shutdown()
        for process in self.processes.values():
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def _start(self) -> "subprocess.Popen[bytes]":
        path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        words = [sys.executable, "-m", "support.data_worker", str(self._slots), f"{self._timeout_s / 16}"]
        environment = {**os.environ, "PYTHONPATH": path, "GRPC_ENABLE_FORK_SUPPORT": "0"}  # as the command does
        return self._starter.submit(start_child, words, environment, stdout=subprocess.PIPE).result()

    def _enter(self, index: int, process: "subprocess.Popen[bytes]") -> None:
        port = int(process.stdout.readline())
        self.processes[index] = process
        self._entries[index] = {
            "index": index,
            "instance": uuid.uuid4().hex,
            "address": f"127.0.0.1:{port}",
        }

    def _write(self, entries: Sequence[dict[str, Any]] | None = None) -> None:
        new = self.file.with_suffix(".new")
        shown = list(self._entries.values()) if entries is None else entries
        new.write_text(json.dumps({"version": 1, "kind": "ringtrain", "workers": shown, "dispatchers": []}))
        new.replace(self.file)


def main() -> None:
    """Serve on any free port, and print it."""
    slots, alive_s = int(sys.argv[1]), float(sys.argv[2])
    server = DataWorkerServer(0, Secrets(), "none", slots=slots, alive_s=alive_s, environment=os.environ)
    print(server.port, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
