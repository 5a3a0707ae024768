"""Processes that outlive their pod's first process: a container ends them all, and so does this.

Linux only: elsewhere a pod's process group is killed and what left the group is not found.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
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


class LocalOrphanWatcher:
    """A process that does, where this one is killed, what this one can't do any more: it ends all processes that
    have the environment's `variables()`, and removes `folder`.
    """

    _VARIABLE = "RINGTRAIN_LOCAL_RUN"
    # Isolated: neither the user's directory nor variables of Python's change what it loads.
    _PROGRAM = (
        "import sys; sys.path.insert(0, {packages!r}); "
        "from {module} import watch_local_driver; watch_local_driver({marker!r}, {folder!r})"
    )

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        marker = f"{self._VARIABLE}={folder}"
        program = self._PROGRAM.format(
            packages=str(Path(__file__).parents[2]), module=__name__, marker=marker, folder=self._folder
        )
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", program],
            # Not one of the processes of a run that this one may be a part of: it outlives that by a moment.
            env={name: value for name, value in os.environ.items() if name != self._VARIABLE},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def variables(self) -> dict[str, str]:
        """What the processes that it ends have in their environment."""
        return {self._VARIABLE: self._folder}

    def close(self) -> None:
        """All was ended: nothing is left to watch. May be called again."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # the watcher was killed; this was closed before
            os.write(self._process.stdin.fileno(), b".")
            self._process.stdin.close()
        self._process.wait()


def watch_local_driver(marker: str, folder: str) -> None:
    """Wait until stdin says that all was ended, or ends itself, as the process did that held its other end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read(1):
        return
    # Repeated: a process may have forked between the look and the signal.
    while pids := [
        int(path.name) for path in Path("/proc").glob("[0-9]*") if _carries_run_marker(int(path.name), marker)
    ]:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    shutil.rmtree(folder, ignore_errors=True)


def end_orphans(marker: str) -> None:
    """Kill and reap every child of this process that carries `marker` (NAME=value) in its environment."""
    while True:
        orphans = [pid for pid in _orphan_children() if _carries_run_marker(pid, marker)]
        if not orphans:
            return
        for pid in orphans:
            _kill_local_orphan(pid)


def _orphan_children() -> list[int]:
    """Children of this process, whichever of its threads they hang on."""
    found: list[int] = []
    for children in Path("/proc/self/task").glob("*/children"):
        try:
            found += map(int, children.read_text().split())
        except OSError:
            continue
    return found


def _carries_run_marker(pid: int, marker: str) -> bool:
    try:
        return marker.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _kill_local_orphan(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        return
