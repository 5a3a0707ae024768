"""Readers for files of the log store, while they grow or afterwards."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ringtrain.errors import RingtrainError, in_ranges
from ringtrain_job.logs.fields import open_existing, rank_number, read_json
from ringtrain_job.logs.layout import AttemptFiles, is_attempt_file

_CHUNK = 1 << 20
_LOOK_AGAIN_S = 0.2
# runs/NAME-TIME/logs/NAMESPACE/NAME/ATTEMPT, as `dtj local` creates it.
_DEEPEST = 5


class LogMissing(RingtrainError):
    """The requested log does not exist. The message lists the existing ones."""


def find_log(files: AttemptFiles, rank: int | None) -> Path:
    """Return the path of the log of `rank` (None: of all ranks). Raises LogMissing if it cannot be read."""
    path = files.job_log if rank is None else files.rank_log(rank)
    if path.is_file() and os.access(path, os.R_OK):
        return path
    if path.exists():
        raise LogMissing(f"{path} is not a file that you may read")
    if not files.directory.is_dir():
        kept = sorted(int(p.name) for p in files.directory.parent.glob("*") if p.name.isdecimal())
        raise LogMissing(f"{files.directory} does not exist; attempts with logs: {in_ranges(kept)}")
    ranks = in_ranges(files.rank_logs())
    if rank is None:
        raise LogMissing(f"{path} is missing; --rank prints the output of one rank: {ranks}")
    raise LogMissing(f"{path.name} does not exist; expected a rank that has written something: {ranks}")


def find_attempts(where: Path, levels: int = _DEEPEST) -> Iterator[AttemptFiles]:
    """Yield the attempts whose folder is `where` or at most `levels` levels below it."""
    try:
        with os.scandir(where) as entries:
            found = list(entries)
    except OSError:
        return
    if any(is_attempt_file(entry.name) for entry in found):
        yield AttemptFiles(where)
    for entry in found:
        if levels and entry.is_dir():
            yield from find_attempts(where / entry.name, levels - 1)


def read_log_members(files: AttemptFiles) -> frozenset[int]:
    """Return the slots that were in an elastic job's last world; empty for other jobs."""
    found = read_json(files.generations)
    members = found.get("members") if isinstance(found, dict) else None
    slots = [member.get("slot") for member in members if isinstance(member, dict)] if isinstance(members, list) else []
    return frozenset(slot for slot in map(rank_number, slots) if slot is not None)


def follow_log(path: Path, position: int, is_over: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the content of `path` from byte `position` on, and whatever is added until `is_over()`. The file may be
    created later."""
    while True:
        over = is_over()  # called before reading, so that everything written until then is read
        for chunk in read_log_from(path, position):
            position += len(chunk)
            yield chunk
        if over:
            return
        time.sleep(_LOOK_AGAIN_S)


def read_log_from(path: Path, position: int) -> Iterator[bytes]:
    """Yield the content of `path` from byte `position` on; nothing if the file cannot be read."""
    file = open_existing(path)
    if file is None:
        return
    with file:
        file.seek(position)
        while chunk := file.read(_CHUNK):
            yield chunk


def log_tail_position(path: Path, lines: int) -> int:
    """Return the byte position in `path` where its last `lines` lines begin."""
    file = open_existing(path)
    if file is None:
        return 0
    with file:
        position, seen = file.seek(0, 2), 0
        if lines == 0:
            return position
        newest = True
        while position > 0:
            size = min(_CHUNK, position)
            position -= size
            file.seek(position)
            chunk = file.read(size)
            end = len(chunk) - 1 if newest and chunk.endswith(b"\n") else len(chunk)
            newest = False
            while (found := chunk.rfind(b"\n", 0, end)) >= 0:
                seen, end = seen + 1, found
                if seen == lines:
                    return position + found + 1
        return 0
