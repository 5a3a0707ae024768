"""Functions that end the processes that a pod's first process leaves behind, as the end of a container does.

Linux only. On other systems, a pod's process group is killed, and processes that left the group are not found.
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
# Loaded at import: nothing can be imported safely between fork and exec.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process from now on."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent dies. Called in a child before exec."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


class LocalOrphanWatcher:
    """Process that ends a local job's processes if the driver (the process that created it) is killed.

    It ends all processes whose environment has `variables()`, and removes `folder`.
    """

    _VARIABLE = "RINGTRAIN_LOCAL_RUN"
    # Isolated mode: the working directory and Python's variables do not change its imports.
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
            # Without the marker of an outer run, of which this process may be a part: the watcher outlives it a moment.
            env={name: value for name, value in os.environ.items() if name != self._VARIABLE},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def variables(self) -> dict[str, str]:
        """Return environment variables that mark a process as one of the job, so that the watcher can find it."""
        return {self._VARIABLE: self._folder}

    def close(self) -> None:
        """Stop the watcher, which then kills and removes nothing. Call this after the job's processes have ended.

        Safe to call again.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # the watcher was killed, or close was called before
            os.write(self._process.stdin.fileno(), b".")
            self._process.stdin.close()
        self._process.wait()


def watch_local_driver(marker: str, folder: str) -> None:
    """Wait for a byte on stdin. If stdin closes without one, kill the processes with `marker` and remove `folder`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read(1):
        return
    # Repeated: a process may have forked between the listing and the signal.
    while pids := [int(path.name) for path in Path("/proc").glob("[0-9]*") if _has_marker(int(path.name), marker)]:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    shutil.rmtree(folder, ignore_errors=True)


def end_orphans(marker: str) -> None:
    """Kill and reap every child of this process with `marker` (NAME=value) in its environment."""
    while True:
        orphans = [pid for pid in _orphan_children() if _has_marker(pid, marker)]
        if not orphans:
            return
        for pid in orphans:
            _kill_and_reap(pid)


def _orphan_children() -> list[int]:
    """Return the children of all threads of this process."""
    found: list[int] = []
    for children in Path("/proc/self/task").glob("*/children"):
        try:
            found += map(int, children.read_text().split())
        except OSError:
            continue
    return found


def _has_marker(pid: int, marker: str) -> bool:
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
