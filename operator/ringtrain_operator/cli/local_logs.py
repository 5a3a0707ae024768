"""`dtj logs` of a job that `dtj local` has run: its files under runs/."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path

from ..local.kept import NoSuchRun, newest_run


def print_local_log(runs: Path, name: str, rank: int | None, attempt: int | None, tail: int | None) -> None:
    """Write the log to stdout, byte for byte. Raises NoSuchRun."""
    path = newest_run(runs, name).log(rank, attempt)
    try:
        with path.open("rb") as file:
            sys.stdout.buffer.writelines(file if tail is None else deque(file, tail))
        sys.stdout.buffer.flush()
    except OSError as exc:
        raise NoSuchRun(f"{path}: {exc.strerror}") from exc
