"""Processes that outlive their pod's first process: a container ends them all, and so does this.

Linux only: elsewhere a pod's process group is killed and what left the group is not found.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Loaded here: between fork and exec nothing may be imported.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def adopt_orphans() -> None:
    """From now on orphaned descendants become children of this process."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Called in a child before exec: when its parent is killed, so is it."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def end_orphans(marker: str) -> None:
    """Kill and reap every child of this process that carries `marker` (NAME=value) in its environment."""
    while True:
        orphans = [pid for pid in _children() if _carries(pid, marker)]
        if not orphans:
            return
        for pid in orphans:
            _kill_and_reap(pid)


def _children() -> list[int]:
    """Children of this process, whichever of its threads they hang on."""
    found: list[int] = []
    for children in Path("/proc/self/task").glob("*/children"):
        try:
            found += map(int, children.read_text().split())
        except OSError:
            continue
    return found


def _carries(pid: int, marker: str) -> bool:
    try:
        return marker.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _kill_and_reap(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        return
