"""Starting processes, and leaving none behind.

Two ways find what a process started, whatever sessions and process groups it made. PID 1 of a pod ends its
children, which every orphan becomes in time. An MPI daemon is one of several in its pod: what it started inherits
its environment, in which a marker names the daemon.

Of a run's temporary folder and processes nothing stays, also where the run itself is killed.
"""

import ctypes
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
from ringtrain.shared.proc import living_processes, process_view

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)
# 1 MiB: a burst of lines fits before the reader has had its turn.
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
MARKER = "RINGTRAIN_MPI_DAEMON"
_POLL_S = 0.05


@dataclass(frozen=True)
class RankProcess:
    """A running rank. Its process is the leader of a session of its own; `log_fd`, `report_fd`: read ends."""

    rank: int
    pid: int
    log_fd: int
    report_fd: int


@contextmanager
def signal_handler(handler: Callable[[int, Any], None], *numbers: int) -> Iterator[None]:
    """Have `handler` called for the signals `numbers`, and what was there before after the block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def signal_name(number: int) -> str:
    """SIGTERM for 15; of one without a name, as real-time signals are, the number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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


def start_child(command: Sequence[str], environment: Mapping[str, str], **streams: Any) -> "subprocess.Popen[bytes]":
    """Start `command` as the leader of a session of its own that ends when this process does.

    `streams`: further arguments of Popen; stdin is empty by default. Call from a thread that lives as long as the
    child shall.
    """
    return subprocess.Popen(
        list(command),
        env=dict(environment),
        start_new_session=True,
        preexec_fn=die_with_parent(os.getpid()),
        **{"stdin": subprocess.DEVNULL, **streams},
    )


def end_child(process: "subprocess.Popen[bytes]", patience_s: float = 0.0) -> bool:
    """Return when `process` has ended; it is killed after `patience_s`. Returns whether it ended by itself."""
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True


def start_rank(rank: int, command: Sequence[str], environment: Mapping[str, str]) -> RankProcess:
    """Start `command` as `rank`; raises OSError when it cannot be executed. Call from the main thread only."""
    log_read, log_write = make_pipe()
    report_read, report_write = make_pipe()
    # A rank must never wait for its reports to be read.
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


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process, and none has let it go on. A traced process is not meant."""
    view = process_view(pid)
    return view is not None and view.state == "T"


def kill_descendants() -> bool:
    """SIGKILL every child of this process; returns whether there was one.

    With orphans adopted (`become_subreaper`), repeating this until it is False leaves no descendant.
    """
    children = [view.pid for view in living_processes().values() if view.parent == os.getpid()]
    return _signal_all(children, signal.SIGKILL) > 0


def signal_marked(marker: str, number: int, variable: str = MARKER) -> int:
    """Send signal `number` to all processes of `marker`; returns how many there were."""
    return _signal_all(marked_processes(marker, variable), number)


def end_marked(marker: str, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
    """End all processes of `marker`: SIGTERM, and SIGKILL to those that are still there after `grace_s`."""
    deadline = clock() + grace_s
    signal_marked(marker, signal.SIGTERM)
    while marked_processes(marker) and clock() < deadline:
        time.sleep(_POLL_S)
    kill_marked(marker)


def kill_marked(marker: str, variable: str = MARKER, within_s: float = math.inf) -> None:
    """SIGKILL to all processes of `marker`; one that waits for a disk is waited for no longer than `within_s`."""
    deadline = time.monotonic() + within_s
    # Repeated: a process may have forked between the look and the signal.
    while signal_marked(marker, signal.SIGKILL, variable) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def marked_processes(marker: str, variable: str = MARKER) -> list[int]:
    """Process ids of all living processes with `marker` as `variable` in their environment; zombies have none."""
    wanted = f"{variable}={marker}".encode()
    found = []
    for pid in living_processes():
        with suppress(OSError):  # it may have ended, or be another user's
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def _signal_all(pids: Sequence[int], number: int) -> int:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(pids)


# A process that can't be killed yet, because it waits for a disk, is not waited for.
_ENDED_WITHIN_S: Final = 10.0
_PACKAGES: Final = Path(__file__).parents[2]


@contextmanager
def run_folder() -> Iterator[Path]:
    """Make a folder. Behind the block kill every process that has it as RINGTRAIN_RUN_FOLDER, and remove it.

    A process watches this one, and does the same where this one is killed.
    """
    folder = Path(tempfile.mkdtemp(prefix="ringtrain-"))
    # Isolated: neither the user's directory nor variables of Python's change what it loads.
    program = (
        f"import sys; sys.path.insert(0, {str(_PACKAGES)!r}); "
        f"from {__name__} import watch_run_folder; watch_run_folder({str(folder)!r})"
    )
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-c", program],
        # Not one of the processes of a run that this one may be a part of: it outlives that by a moment.
        env={name: value for name, value in os.environ.items() if name != contract.ENV_RUN_FOLDER},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # who reads what the run writes waits for its end, not for this one's
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a terminal's signals are not for it
    )
    try:
        yield folder
    finally:
        _clear_run_folder(folder)
        with suppress(OSError):  # the watcher was killed
            watcher.communicate(b".")


def watch_run_folder(folder: str) -> None:
    """Wait until stdin says that all was cleared, or ends, as the process did that wrote there: then clear it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not sys.stdin.buffer.read(1):
        _clear_run_folder(Path(folder))


def _clear_run_folder(folder: Path) -> None:
    kill_marked(str(folder), contract.ENV_RUN_FOLDER, _ENDED_WITHIN_S)
    shutil.rmtree(folder, ignore_errors=True)
