"""Checkpoints as files of one directory: written whole or not at all, found by step, the oldest removed."""

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from ringtrain.checkpoint.owner import LOCK

Stage = Literal["written", "synced", "renamed"]
OnStage = Callable[[Stage], None]

NAME = re.compile(r"ckpt-(\d{10,})\.npz")
ASIDE = re.compile(r"ckpt-(\d{10,})\.npz\.damaged")


def checkpoint_path(directory: Path, step: int) -> Path:
    return directory / f"ckpt-{step:010d}.npz"


def checkpoints_by_step(directory: Path, pattern: re.Pattern[str] = NAME) -> dict[int, Path]:
    """Return the finished checkpoints in `directory`, or others by `pattern`, the newest first. Raises OSError."""
    if not directory.is_dir():
        return {}
    found = {int(match[1]): path for path in directory.iterdir() if (match := pattern.fullmatch(path.name))}
    return dict(sorted(found.items(), reverse=True))


def write_atomically(path: Path, write: Callable[[BinaryIO], None], on_stage: OnStage) -> None:
    """Have `write` fill `path`: whoever looks finds the old file or the whole new one, also after a power cut.

    `on_stage` is called after each stage, so that a test can stop the world there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            on_stage("written")
            file.flush()
            os.fsync(file.fileno())
        on_stage("synced")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
    on_stage("renamed")


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint so that it is neither read nor counted again, but can be looked at."""
    return path.rename(path.with_name(f"{path.name}.damaged"))


def remove_old(folders: Sequence[Path], keep: int, newest: Path) -> None:
    """Remove what is no longer needed: all but `newest` and the `keep` latest checkpoints, damaged ones older than
    those, and files that a crash left half-written.

    `folders`: that of `newest`, then those of earlier attempts, newest first. Any checkpoint of an attempt is
    later than all of those before it. Folders that are empty then are removed.
    """
    for folder in folders:
        found = checkpoints_by_step(folder)
        kept = dict(list(found.items())[:keep])
        keep -= len(kept)
        stale = [path for step, path in found.items() if step not in kept and path != newest]
        stale += [
            path for step, path in checkpoints_by_step(folder, ASIDE).items() if not kept or step < min(kept)
        ]
        stale += list(folder.glob("ckpt-*.npz*.tmp"))
        for path in stale:
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # nothing is lost if a removed file comes back
            sync_directory(folder)
        if folder == newest.parent:
            continue
        with contextlib.suppress(OSError):  # nothing is lost if it stays
            if {path.name for path in folder.iterdir()} <= {LOCK}:
                (folder / LOCK).unlink(missing_ok=True)
                folder.rmdir()


def sync_directory(directory: Path) -> None:
    """Make renames in `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
