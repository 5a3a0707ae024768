"""Readers for files of the log store, while they grow or afterwards."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ringtrain.errors import RingtrainError, in_ranges
from ringtrain_job.logs.layout import AttemptFiles

_CHUNK = 1 << 20
_LOOK_AGAIN_S = 0.2
# runs/NAME-TIME/logs/NAMESPACE/NAME/ATTEMPT, as `dtj local` creates it.
_DEEPEST = 5


class LogMissing(RingtrainError):
    """The requested log does not exist. The message lists the existing ones."""


def find_log(files: AttemptFiles, rank: int | None) -> Path:
    """Return the path of the log of `rank` (None: of all ranks). Raises LogMissing if it does not exist."""
    path = files.job_log if rank is None else files.rank_log(rank)
    if path.exists():
        return path
    if not files.directory.is_dir():
        kept = sorted(int(p.name) for p in files.directory.parent.glob("*") if p.name.isdecimal())
        raise LogMissing(f"{files.directory} does not exist; attempts with logs: {in_ranges(kept)}")
    ranks = sorted(int(p.stem.removeprefix("rank-")) for p in files.directory.glob("rank-*.log"))
    raise LogMissing(f"{path.name} does not exist; expected a rank that has written something: {in_ranges(ranks)}")


def find_logs(where: Path) -> list[Path]:
    """Return the paths of merged logs (job.log) in `where` or some levels below it."""
    return [log for depth in range(_DEEPEST + 1) for log in where.glob("*/" * depth + "job.log")]


def read_outcome(files: AttemptFiles) -> dict[str, Any] | None:
    """Return the stored outcome of an attempt; None if its launcher has not written one."""
    try:
        found = json.loads(files.outcome.read_text())["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def read_log_members(files: AttemptFiles) -> frozenset[int]:
    """Return the slots that were in an elastic job's last world; empty for other jobs."""
    try:
        return frozenset(int(member["slot"]) for member in json.loads(files.generations.read_text())["members"])
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()


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
    """Yield the content of `path` from byte `position` on; nothing if the file does not exist."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(position)
        while chunk := file.read(_CHUNK):
            yield chunk


def log_tail_position(path: Path, lines: int) -> int:
    """Return the byte position in `path` where its last `lines` lines begin."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
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
