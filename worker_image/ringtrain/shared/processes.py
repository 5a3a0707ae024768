"""Starting, stopping and cleaning up processes and all their descendants.

There are two ways to find a process's descendants, whatever sessions and process groups they use. PID 1 of a pod ends
its children, which all orphans become. An MPI daemon is one of several in its pod: its descendants inherit its
environment, in which a marker names the daemon.

A run's temporary folder and processes are removed, even if the run itself is killed.
"""

import ctypes
import errno
import fcntl
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ringtrain.shared import contract

# Errors of a program's start that another attempt does not fix, unlike a lack of memory or processes.
NO_PROGRAM = frozenset({errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR})
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)
# 1 MiB: a burst of lines fits until the reader is scheduled.
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
MARKER = "RINGTRAIN_MPI_DAEMON"
_POLL_S = 0.05


@dataclass(frozen=True)
class RankProcess:
    """Running process of a rank, which leads a session. `log_fd`, `report_fd`: read ends of its pipes."""

    rank: int
    pid: int
    log_fd: int
    report_fd: int


@contextmanager
def signal_handler(handler: Callable[[int, Any], None], *numbers: int) -> Iterator[None]:
    """Handle the signals `numbers` by `handler` within the context, and restore earlier handlers afterwards."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGTERM for 15; `signal 40` if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def become_subreaper() -> None:
    """Make this process the parent of its orphaned descendants, like PID 1 in a container."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> Callable[[], None]:
    """Return a `preexec_fn` that makes the kernel kill the child when the thread that started it ends."""

    def arrange() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(128 + signal.SIGKILL)

    return arrange


def start_child(command: Sequence[str], environment: Mapping[str, str], **streams: Any) -> "subprocess.Popen[bytes]":
    """Start `command` in a separate session, and return the process. The kernel kills it when the calling thread ends.

    `streams`: further arguments of Popen; stdin is empty by default. Call it from a thread that lives as long as the
    child must.
    """
    return subprocess.Popen(
        list(command),
        env=dict(environment),
        start_new_session=True,
        preexec_fn=die_with_parent(os.getpid()),
        **{"stdin": subprocess.DEVNULL, **streams},
    )


def end_child(process: "subprocess.Popen[bytes]", patience_s: float = 0.0) -> bool:
    """Wait up to `patience_s` for `process` to end, then kill it. Return whether it ended by itself."""
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True


def start_rank(rank: int, command: Sequence[str], environment: Mapping[str, str]) -> RankProcess:
    """Start `command` as the process of rank `rank`, and return the process. Raises OSError if it cannot be executed.
    Call it from the main thread only."""
    log_read, log_write = make_pipe()
    report_read, report_write = make_pipe()
    # A rank must never wait for the reader of its reports.
    os.set_blocking(report_write, False)
    try:
        process = start_child(
            command,
            {**environment, contract.ENV_REPORT_FD: str(report_write)},
            stdout=log_write,
            stderr=log_write,
            pass_fds=(report_write,),
        )
    except OSError:
        os.close(log_read)
        os.close(report_read)
        raise
    finally:
        os.close(log_write)
        os.close(report_write)
    process.returncode = 0  # reaped by `reap`, not by Popen
    return RankProcess(rank, process.pid, log_read, report_read)


def make_pipe() -> tuple[int, int]:
    """Return read and write end of a pipe with a large buffer. Reads do not block."""
    read, write = os.pipe()
    with suppress(OSError):  # above the user's limit of pipe pages: use the default size
        fcntl.fcntl(write, _F_SETPIPE_SZ, _PIPE_BYTES)
    os.set_blocking(read, False)
    return read, write


def reap() -> list[tuple[int, int]]:
    """Return (pid, wait status) of each child that has ended, including adopted orphans."""
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
    """Send signal `number` to the process group that `pid` leads. Does nothing if the group has ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def is_stopped(pid: int) -> bool:
    """Return whether the process was stopped by a signal, such as SIGSTOP, and not continued."""
    view = process_view(pid)
    return view is not None and view.state == "T"


def kill_descendants() -> bool:
    """Send SIGKILL to every child of this process. Return whether there was one.

    If orphans are adopted (`become_subreaper`), repeating this until it returns False leaves no descendant.
    """
    children = [view.pid for view in living_processes().values() if view.parent == os.getpid()]
    return _signal_all(children, signal.SIGKILL) > 0


def signal_marked(marker: str, number: int, variable: str = MARKER) -> int:
    """Send signal `number` to all processes that have `variable` = `marker` in their environment. Return how many."""
    return _signal_all(marked_processes(marker, variable), number)


def end_marked(marker: str, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
    """End all processes with RINGTRAIN_MPI_DAEMON = `marker` in their environment: SIGTERM, SIGKILL after `grace_s`."""
    deadline = clock() + grace_s
    signal_marked(marker, signal.SIGTERM)
    while marked_processes(marker) and clock() < deadline:
        time.sleep(_POLL_S)
    kill_marked(marker)


def kill_marked(marker: str, variable: str = MARKER, within_s: float = math.inf) -> None:
    """Kill all processes with `variable` = `marker` in their environment, and wait up to `within_s` for their end."""
    deadline = time.monotonic() + within_s
    # Repeated: a process may have forked between the search and the signal.
    while signal_marked(marker, signal.SIGKILL, variable) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def marked_processes(marker: str, variable: str = MARKER) -> list[int]:
    """Return the pids of all living processes that have `variable` = `marker` in their environment."""
    wanted = f"{variable}={marker}".encode()
    found = []
    for pid in living_processes():
        with suppress(OSError):  # it may have ended, or belong to another user
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def _signal_all(pids: Sequence[int], number: int) -> int:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(pids)


# Limit of the wait for a process that can't be killed yet because it waits for a disk.
_ENDED_WITHIN_S: Final = 10.0
_PACKAGES: Final = Path(__file__).parents[2]


@contextmanager
def run_folder() -> Iterator[Path]:
    """Create a temporary folder. On exit, kill every process that has it as RINGTRAIN_RUN_FOLDER, and remove the
    folder.

    A second process watches this process, and does the same if this process is killed.
    """
    folder = Path(tempfile.mkdtemp(prefix="ringtrain-"))
    # Isolated mode: neither the user's directory nor Python's variables change the loaded modules.
    program = (
        f"import sys; sys.path.insert(0, {str(_PACKAGES)!r}); "
        f"from {__name__} import watch_run_folder; watch_run_folder({str(folder)!r})"
    )
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-c", program],
        # Without the variable of an enclosing run, because it lives slightly longer than that run.
        env={name: value for name, value in os.environ.items() if name != contract.ENV_RUN_FOLDER},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # readers of the run's output must not wait for this process
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # must not receive a terminal's signals
    )
    try:
        yield folder
    finally:
        _clear_run_folder(folder)
        with suppress(OSError):  # the watcher was killed
            watcher.communicate(b".")


def watch_run_folder(folder: str) -> None:
    """Wait for a byte on stdin. If stdin closes without one, its writer was killed, so clear the folder."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not sys.stdin.buffer.read(1):
        _clear_run_folder(Path(folder))


def _clear_run_folder(folder: Path) -> None:
    kill_marked(str(folder), contract.ENV_RUN_FOLDER, _ENDED_WITHIN_S)
    shutil.rmtree(folder, ignore_errors=True)


# Shells, and coreutils' timeout, which forwards signals to its whole group.
_RUNNERS: Final = frozenset(
    {"ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "ksh93", "mksh", "sh", "timeout", "zsh"}
)


@dataclass(frozen=True)
class ProcessView:
    """One process. `state`: letter as in ps. `started`: start time in ticks, by which a reused pid is recognized."""

    pid: int
    state: str
    parent: int
    session: int
    started: int


def process_view(pid: int) -> ProcessView | None:
    """Return the process with this pid; None if it has ended and was reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # pid (name) state parent group session …; the name may contain any character, including parentheses and blanks.
    fields = stat.rpartition(b")")[2].split()
    return ProcessView(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def living_processes() -> dict[int, ProcessView]:
    """Return all processes of this machine except zombies, by pid."""
    views = (process_view(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return {view.pid: view for view in views if view is not None and view.state not in "ZX"}


def handles_signal(pid: int, number: int) -> bool:
    """Return whether the process catches or ignores signal `number`, instead of being ended by it."""
    with suppress(OSError), open(f"/proc/{pid}/status") as status:
        masks = [line.split()[1] for line in status if line.startswith(("SigCgt:", "SigIgn:"))]
        return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
    return False


def is_shell(pid: int) -> bool:
    """Return whether the process is a shell or a similar program, such as `timeout`, that runs other programs."""
    with suppress(OSError):
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in _RUNNERS
    return False
