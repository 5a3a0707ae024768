"""Processes for `ringtrain run --data-workers N`: start the data workers, and restart them when they end."""

import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from ringtrain.shared import contract
from ringtrain.shared.processes import end_child, is_stopped
from ringtrain_job.cli.run_processes import start_run_process

_POLL_S: Final = 0.5
# A data worker that ends sooner is restarted with exponential backoff, which has the same upper limit.
_MIN_LIFE_S: Final = 30.0
_STOPPED_S: Final = 5.0

log = logging.getLogger(__name__)


def start_data_workers(stack: ExitStack, environment: Mapping[str, str], command: Sequence[str], level: str) -> None:
    """Run as many data workers as RINGTRAIN_DATA_WORKERS says, until `stack` is closed.

    The directory of the script in `command` is in their PYTHONPATH, so that they can import its modules.
    """
    count = int(environment.get(contract.ENV_DATA_WORKERS) or 0)
    if count:
        stack.callback(
            _DataWorkerCommands(count, {**environment, "PYTHONPATH": _python_path(environment, command)}, level).close
        )


class _DataWorkerCommands:
    """Thread that starts `count` data workers, restarts them, and ends them at last."""

    def __init__(self, count: int, environment: Mapping[str, str], level: str) -> None:
        self._count = count
        self._environment = environment
        self._level = level
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ringtrain-data-workers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all data workers, and wait for that."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        with ExitStack() as stack:
            workers = [_RestartedCommand(index, self._start) for index in range(self._count)]
            for worker in workers:
                stack.callback(worker.close)
            while not self._closed.wait(_POLL_S):
                for worker in workers:
                    worker.restart_if_due()

    def _start(self, index: int, stack: ExitStack) -> "subprocess.Popen[bytes]":
        own = {
            contract.ENV_DATA_INDEX: str(index),
            contract.ENV_DATA_PORT: "0",
            contract.ENV_POD_NAME: f"{self._environment[contract.ENV_JOB_NAME]}-data-{index}",
        }
        words = ["data-worker", "--log-level", self._level]
        return start_run_process(stack, contract.ROLE_DATA, {**self._environment, **own}, words)


class _RestartedCommand:
    """One process that is restarted when it ends. After a short run, the restart waits for a backoff.

    A process that a signal has stopped is killed first.
    """

    def __init__(self, index: int, begin: Callable[[int, ExitStack], "subprocess.Popen[bytes]"]) -> None:
        self._index = index
        self._begin = begin
        self._stopped_since: float | None = None
        self._pause_s = 0.0
        self._start()

    def restart_if_due(self) -> None:
        """Restart the process if it has ended and its backoff has passed."""
        now = time.monotonic()
        self._kill_if_stopped(now)
        if self._process.poll() is None or now < self._started + self._pause_s:
            return
        quick = now - self._started < _MIN_LIFE_S
        self._pause_s = min(max(_POLL_S, 2 * self._pause_s), _MIN_LIFE_S) if quick else 0.0
        self.close()
        self._start()

    def close(self) -> None:
        """End the process."""
        self._own.close()

    def _kill_if_stopped(self, now: float) -> None:
        if not is_stopped(self._process.pid):
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now
        elif now - self._stopped_since >= _STOPPED_S:
            log.warning("killing data worker %d, because a signal has stopped it for %g s", self._index, _STOPPED_S)
            end_child(self._process)

    def _start(self) -> None:
        self._own, self._started = ExitStack(), time.monotonic()
        self._process = self._begin(self._index, self._own)


def _python_path(environment: Mapping[str, str], command: Sequence[str]) -> str:
    """Return a PYTHONPATH that begins with the folder of the script in `command`."""
    script = next((word for word in command if word.endswith(".py")), None)
    found = [str(Path(script).resolve().parent)] if script else []
    return os.pathsep.join([*found, *filter(None, [environment.get("PYTHONPATH")])])
