"""Directories in shared memory that do not outlive their agents, however these end."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "ringtrain-mpi-"
_LOCK: Final = "agent.lock"  # held by the agent for as long as it lives


def make_directory(parent: Path) -> Path:
    """Make a directory of this process's own in `parent`, and remove those whose processes were killed.

    Raises OSError where `parent` can't be used.
    """
    for found in parent.glob(f"{_PREFIX}*"):
        if _is_abandoned(found):
            shutil.rmtree(found, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    fcntl.flock(os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), fcntl.LOCK_EX)
    return directory


def _is_abandoned(directory: Path) -> bool:
    """Whether nobody holds its lock. One without a lock is being made."""
    with suppress(OSError), (directory / _LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
