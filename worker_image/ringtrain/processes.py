"""Starting rank processes, and leaving none behind."""

import ctypes
import fcntl
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ringtrain import contract

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)
# 1 MiB: a burst of lines fits before the reader has had its turn.
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031


@dataclass(frozen=True)
class RankProcess:
    """A running rank. Its process is the leader of a session of its own; `log_fd`, `report_fd`: read ends."""

    rank: int
    pid: int
    log_fd: int
    report_fd: int


def become_subreaper() -> None:
    """Make orphaned descendants of this process its children, as they are for PID 1."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> Callable[[], None]:
    """What a child runs before exec so that it is killed when the thread of `parent` that made it ends."""

    def arrange() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(128 + signal.SIGKILL)

    return arrange


def start_rank(rank: int, command: Sequence[str], environment: Mapping[str, str]) -> RankProcess:
    """Start `command` as `rank`; raises OSError when it cannot be executed. Call from the main thread only."""
    log_read, log_write = make_pipe()
    report_read, report_write = make_pipe()
    # A rank must never wait for its reports to be read.
    os.set_blocking(report_write, False)
    try:
        process = subprocess.Popen(
            list(command),
            env={**environment, contract.ENV_REPORT_FD: str(report_write)},
            stdin=subprocess.DEVNULL,
            stdout=log_write,
            stderr=log_write,
            pass_fds=(report_write,),
            start_new_session=True,
            preexec_fn=die_with_parent(os.getpid()),
        )
    except OSError:
        os.close(log_read)
        os.close(report_read)
        raise
    finally:
        os.close(log_write)
        os.close(report_write)
    process.returncode = 0  # reaped by `reap`, with everything else: Popen need not care
    return RankProcess(rank, process.pid, log_read, report_read)


def make_pipe() -> tuple[int, int]:
    """A pipe for a rank to write to: roomy, its read end non-blocking."""
    read, write = os.pipe()
    with suppress(OSError):  # above the user's limit of pipe pages: the default size will do
        fcntl.fcntl(write, _F_SETPIPE_SZ, _PIPE_BYTES)
    os.set_blocking(read, False)
    return read, write


def reap() -> list[tuple[int, int]]:
    """(pid, wait status) of every child that has ended, orphans included."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the process group that `pid` leads; nothing happens when it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def kill_descendants() -> bool:
    """SIGKILL every child of this process; returns whether there was one.

    With orphans adopted (`become_subreaper`), repeating this until it is False leaves no descendant.
    """
    children = _children()
    for pid in children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(children)


def _children() -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has just ended
                # pid (name) state parent …; the name may hold anything, parentheses and blanks included.
                after_name = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(after_name[1]) == os.getpid() and after_name[0] != "Z":
                    found.append(int(entry.name))
    return found
