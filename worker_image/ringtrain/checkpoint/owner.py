"""Who writes checkpoints into a folder: one process at a time, else two would damage each other's files."""

from __future__ import annotations

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

from ringtrain.errors import CheckpointError

LOCK: Final = ".writer"
# Longer than a former rank 0 of an elastic world needs to find that it is not rank 0 any more.
_WAITS_S: Final = 10.0
_LOOKS_EVERY_S: Final = 0.05
# What file systems without locks say: there nobody can be kept out.
_WITHOUT_LOCKS: Final = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)

# Descriptors, and how many own each, by process and folder. A forked child does not have its parent's locks, and a
# process has one lock of a file, which goes when it closes any descriptor of that.
_held: dict[tuple[int, Path], int] = {}
_owners: Counter[tuple[int, Path]] = Counter()
_changing = threading.Lock()


class FolderOwner:
    """Owns a folder until it takes another, gives it up, is collected, or its process ends, however that ends."""

    def __init__(self) -> None:
        self._key: tuple[int, Path] | None = None
        self._end: weakref.finalize[[tuple[int, Path]], FolderOwner] | None = None

    def take(self, folder: Path) -> None:
        """Be the one that writes into `folder`, which is made. Raises CheckpointError with the name of the process
        that has it, and OSError."""
        key = (os.getpid(), folder)
        if self._key == key:
            return
        self.give_up()
        with _changing:
            if key not in _held:
                _held[key] = _locked(folder)
            _owners[key] += 1
        self._key, self._end = key, weakref.finalize(self, _give_up, key)

    def give_up(self) -> None:
        """Let another process write into the folder."""
        if self._end is not None:
            self._end()
        self._key = self._end = None


def _give_up(key: tuple[int, Path]) -> None:
    with _changing:
        _owners[key] -= 1
        if not _owners[key]:
            del _owners[key]
            os.close(_held.pop(key))


def _locked(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(folder, descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(folder: Path, descriptor: int) -> None:
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
                f"{owner} writes its checkpoints into {folder}; give each training a folder of its own, or end "
                "that process"
            )
        time.sleep(_LOOKS_EVERY_S)
