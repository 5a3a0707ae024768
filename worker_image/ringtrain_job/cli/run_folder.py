"""A run's temporary folder and processes, of which nothing stays, also where the run itself is killed."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

from ringtrain.shared import contract
from ringtrain.shared.processes import signal_marked

_POLL_S: Final = 0.05
# A process that can't be killed yet, because it waits for a disk, is not waited for.
_ENDED_WITHIN_S: Final = 10.0


@contextmanager
def run_folder() -> Iterator[Path]:
    """Make a folder. Behind the block kill every process that has it as RINGTRAIN_RUN_FOLDER, and remove it.

    A child of this process watches it, and does the same where this process is killed. Call it from a process that
    has no other thread yet: the child is a fork.
    """
    folder = Path(tempfile.mkdtemp(prefix="ringtrain-"))
    watched, alive = os.pipe()
    watcher = os.fork()
    if watcher == 0:
        _watch(watched, folder)
    os.close(watched)
    try:
        yield folder
    finally:
        _clear(folder)
        with suppress(OSError):  # the watcher was killed
            os.write(alive, b".")
        os.close(alive)
        with suppress(ChildProcessError):
            os.waitpid(watcher, 0)


def _watch(watched: int, folder: Path) -> NoReturn:
    """Wait until the process that wrote to `watched` has cleared all itself, or is gone."""
    try:
        os.setsid()  # a terminal's signals are not for this process
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nowhere, descriptor)  # who reads what the run writes waits for its end, not for this one's
        os.closerange(3, watched)
        os.closerange(watched + 1, os.sysconf("SC_OPEN_MAX"))
        if not os.read(watched, 1):
            _clear(folder)
    finally:
        os._exit(0)


def _clear(folder: Path) -> None:
    deadline = time.monotonic() + _ENDED_WITHIN_S
    # Repeated: a process may have forked between the look and the signal.
    while signal_marked(str(folder), signal.SIGKILL, contract.ENV_RUN_FOLDER) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    shutil.rmtree(folder, ignore_errors=True)
