"""`--data-workers N`: data workers of a run, beside its launcher and agent, each started again when it ends."""

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

_LOOK_S: Final = 0.5
# A data worker that ends sooner waits before it is started again, each time twice as long, at most this long.
_LASTS_S: Final = 30.0
_STOPPED_S: Final = 5.0

log = logging.getLogger(__name__)


def start_data_workers(stack: ExitStack, environment: Mapping[str, str], command: Sequence[str], level: str) -> None:
    """Keep RINGTRAIN_DATA_WORKERS data workers running until `stack` is left; none where it is not set.

    They import what the script of `command` can: its own directory is in their path.
    """
    count = int(environment.get(contract.ENV_DATA_WORKERS) or 0)
    if count:
        stack.callback(
            _DataWorkerCommands(
                count, {**environment, "PYTHONPATH": _data_worker_path(environment, command)}, level
            ).close
        )


class _DataWorkerCommands:
    """`count` processes, which are started by one thread and end with it."""

    def __init__(self, count: int, environment: Mapping[str, str], level: str) -> None:
        self._count = count
        self._environment = environment
        self._level = level
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ringtrain-data-workers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        with ExitStack() as stack:
            workers = [_RestartedCommand(index, self._start) for index in range(self._count)]
            for worker in workers:
                stack.callback(worker.close)
            while not self._closed.wait(_LOOK_S):
                for worker in workers:
                    worker.look()

    def _start(self, index: int, stack: ExitStack) -> "subprocess.Popen[bytes]":
        own = {
            contract.ENV_DATA_INDEX: str(index),
            contract.ENV_DATA_PORT: "0",
            contract.ENV_POD_NAME: f"{self._environment[contract.ENV_JOB_NAME]}-data-{index}",
        }
        words = ["data-worker", "--log-level", self._level]
        return start_run_process(stack, contract.ROLE_DATA, {**self._environment, **own}, words)


class _RestartedCommand:
    """A process that is started again when it ends: at once, and after a pause if it did not last. One that is
    stopped by a signal is ended."""

    def __init__(self, index: int, begin: Callable[[int, ExitStack], "subprocess.Popen[bytes]"]) -> None:
        self._index = index
        self._begin = begin
        self._stopped_since: float | None = None
        self._pause_s = 0.0
        self._start()

    def look(self) -> None:
        """Start the process again if it has ended and it is time."""
        now = time.monotonic()
        self._kill_if_stopped(now)
        if self._process.poll() is None or now < self._started + self._pause_s:
            return
        quick = now - self._started < _LASTS_S
        self._pause_s = min(max(_LOOK_S, 2 * self._pause_s), _LASTS_S) if quick else 0.0
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
            log.warning("data worker %d was stopped by a signal for %g s: it is killed", self._index, _STOPPED_S)
            end_child(self._process)

    def _start(self) -> None:
        self._own, self._started = ExitStack(), time.monotonic()
        self._process = self._begin(self._index, self._own)


def _data_worker_path(environment: Mapping[str, str], command: Sequence[str]) -> str:
    script = next((word for word in command if word.endswith(".py")), None)
    found = [str(Path(script).resolve().parent)] if script else []
    return os.pathsep.join([*found, *filter(None, [environment.get("PYTHONPATH")])])
