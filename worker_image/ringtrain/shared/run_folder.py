"""A run's temporary folder and processes, of which nothing stays, also where the run itself is killed."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ringtrain.shared import contract
from ringtrain.shared.processes import kill_marked

# A process that can't be killed yet, because it waits for a disk, is not waited for.
_ENDED_WITHIN_S: Final = 10.0
_PACKAGES: Final = Path(__file__).parents[2]


@contextmanager
def run_folder() -> Iterator[Path]:
    """Make a folder. Behind the block kill every process that has it as RINGTRAIN_RUN_FOLDER, and remove it.

    A process watches this one, and does the same where this one is killed.
    """
    folder = Path(tempfile.mkdtemp(prefix="ringtrain-"))
    # Isolated: neither the user's directory nor variables of Python's change what it loads.
    program = (
        f"import sys; sys.path.insert(0, {str(_PACKAGES)!r}); "
        f"from {__name__} import watch_run_folder; watch_run_folder({str(folder)!r})"
    )
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-c", program],
        # Not one of the processes of a run that this one may be a part of: it outlives that by a moment.
        env={name: value for name, value in os.environ.items() if name != contract.ENV_RUN_FOLDER},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # who reads what the run writes waits for its end, not for this one's
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a terminal's signals are not for it
    )
    try:
        yield folder
    finally:
        _clear_run_folder(folder)
        with suppress(OSError):  # the watcher was killed
            watcher.communicate(b".")


def watch_run_folder(folder: str) -> None:
    """Wait until stdin says that all was cleared, or ends, as the process did that wrote there: then clear it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not sys.stdin.buffer.read(1):
        _clear_run_folder(Path(folder))


def _clear_run_folder(folder: Path) -> None:
    kill_marked(str(folder), contract.ENV_RUN_FOLDER, _ENDED_WITHIN_S)
    shutil.rmtree(folder, ignore_errors=True)
