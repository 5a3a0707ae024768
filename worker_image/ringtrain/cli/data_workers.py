"""`--data-workers N`: data workers of a run, beside its launcher and agent, each started again when it ends."""

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from ringtrain import contract
from ringtrain.cli.run_processes import start

_LOOK_S: Final = 0.5


def start_data_workers(
    stack: ExitStack, environment: Mapping[str, str], command: Sequence[str], level: str
) -> None:
    """Keep RINGTRAIN_DATA_WORKERS data workers running until `stack` is left; none where it is not set.

    They import what the script of `command` can: its own directory is in their path.
    """
    count = int(environment.get(contract.ENV_DATA_WORKERS) or 0)
    if count:
        stack.callback(
            _DataWorkers(count, {**environment, "PYTHONPATH": _path(environment, command)}, level).close
        )


class _DataWorkers:
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
            running = [self._start(index, stack) for index in range(self._count)]
            while not self._closed.wait(_LOOK_S):
                ended = [index for index, process in enumerate(running) if process.poll() is not None]
                for index in ended:
                    running[index] = self._start(index, stack)

    def _start(self, index: int, stack: ExitStack) -> "subprocess.Popen[bytes]":
        own = {
            contract.ENV_DATA_INDEX: str(index),
            contract.ENV_DATA_PORT: "0",
            contract.ENV_POD_NAME: f"{self._environment[contract.ENV_JOB_NAME]}-data-{index}",
        }
        words = ["data-worker", "--log-level", self._level]
        return start(stack, contract.ROLE_DATA, {**self._environment, **own}, words)


def _path(environment: Mapping[str, str], command: Sequence[str]) -> str:
    script = next((word for word in command if word.endswith(".py")), None)
    found = [str(Path(script).resolve().parent)] if script else []
    return os.pathsep.join([*found, *filter(None, [environment.get("PYTHONPATH")])])
