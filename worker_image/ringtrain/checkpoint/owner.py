"""Lock on a folder of checkpoints, so that only one process writes to it."""

import errno
import fcntl
import os
import socket
import threading
import time
import weakref
from collections import Counter
from pathlib import Path
from typing import Final

from ringtrain._core.communicators.numbers import WORLD
from ringtrain._core.process_groups.context import current_or_none
from ringtrain.errors import CheckpointError

LOCK: Final = ".writer"
# Longer than the former rank 0 of an elastic world needs to leave it.
_WAITS_S: Final = 10.0
_LOOKS_EVERY_S: Final = 0.05
# Errors of file systems without locks: there no process can be excluded.
_WITHOUT_LOCKS: Final = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)

# Descriptors and numbers of owners, by process and folder. A forked child does not inherit locks, and a process has one
# lock per file, which is released when it closes any descriptor of that file.
_held: dict[tuple[int, Path], int] = {}
_owners: Counter[tuple[int, Path]] = Counter()
_changing = threading.RLock()  # garbage collection may release an owner at any point, here too


class CheckpointFolderOwner:
    """Lock on a folder. It is released when another folder is locked, the world is left, or the object is deleted.

    In an elastic world another process may then be rank 0.
    """

    def __init__(self) -> None:
        self._key: tuple[int, Path] | None = None
        self._end: weakref.finalize[[tuple[int, Path]], CheckpointFolderOwner] | None = None

    def take(self, folder: Path) -> None:
        """Lock `folder` for this process. It is created if needed.

        Raises OSError, and CheckpointError with the name of the process that has the lock.
        """
        key = (os.getpid(), folder)
        if self._key == key:
            return
        self.give_up()
        with _changing:
            _owners[key] += 1
            try:
                if key not in _held:
                    _held[key] = _locked_folder(folder)
            except BaseException:
                _owners[key] -= 1
                raise
        self._key, self._end = key, weakref.finalize(self, _give_up_folder, key)
        if (world := current_or_none()) is not None:
            world.run_with_set(WORLD, _CheckpointFolderRelease(self))

    def give_up(self) -> None:
        """Release the lock, so that another process can take it."""
        if self._end is not None:
            self._end()
        self._key = self._end = None


class _CheckpointFolderRelease:
    """Hook that releases the checkpoint folder when this process has left the world. Holds only a weak reference to the
    owner."""

    def __init__(self, owner: CheckpointFolderOwner) -> None:
        self._owner = weakref.ref(owner)

    def stop(self) -> None:
        """Do nothing, because a write in progress completes."""

    def wait_stopped(self, timeout_s: float) -> None:
        """Release the folder after the world was left."""
        if (owner := self._owner()) is not None:
            owner.give_up()

    def in_flight(self) -> str:
        """Return "": this hook runs no collectives."""
        return ""


def _give_up_folder(key: tuple[int, Path]) -> None:
    with _changing:
        _owners[key] -= 1
        if not _owners[key] and key in _held:
            os.close(_held.pop(key))


def _locked_folder(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock_folder(folder, descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock_folder(folder: Path, descriptor: int) -> None:
    deadline = time.monotonic() + _WAITS_S
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno in _WITHOUT_LOCKS:
                return
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
        if time.monotonic() >= deadline:
            owner = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
            raise CheckpointError(
                f"{owner} writes its checkpoints into {folder}; use another folder for this training, or end "
                "that process"
            )
        time.sleep(_LOOKS_EVERY_S)
