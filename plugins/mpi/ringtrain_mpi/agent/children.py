"""Child processes of the agent that are not ranks, started on its main thread on behalf of other threads.

The main thread of an agent reaps every child, both ranks and adopted orphans. If it also starts them, it knows each
child before the child can end.
"""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ringtrain.shared.processes import start_child

T = TypeVar("T")


class MpiAgentMainThread:
    """Executor of functions on the agent's main thread. `post` schedules a function there. No call waits longer than
    `patience_s`."""

    def __init__(self, post: Callable[[Callable[[], None]], None], patience_s: float) -> None:
        self._post = post
        self._patience_s = patience_s

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` on the main thread and return its result. Raises the errors of `work`, and TimeoutError if the
        main thread is busy."""
        done: Future[T] = Future()

        def do() -> None:
            if not done.set_running_or_notify_cancel():
                return  # the caller has stopped waiting
            try:
                done.set_result(work())
            except BaseException as exc:
                done.set_exception(exc)

        self._post(do)
        try:
            return done.result(self._patience_s)
        except TimeoutError:
            if done.cancel():
                raise
            return done.result()  # it had just begun


@dataclass(frozen=True)
class ChildStreams:
    """Open files that become the child's stdin, stdout and stderr."""

    stdin: int
    stdout: int
    stderr: int


@dataclass(frozen=True)
class MpiDaemonChild:
    """A started process. `exit`: exit code of the process once it has ended, negative for a signal."""

    pid: int
    exit: "Future[int]"


class MpiDaemonSpawner(Protocol):
    """Starter of processes. Raises OSError if the command cannot be executed."""

    def spawn(self, command: Sequence[str], environment: Mapping[str, str], streams: ChildStreams) -> MpiDaemonChild:
        """Start `command` as a session leader."""


class MpiDaemonChildren:
    """`MpiDaemonSpawner` on the main thread, which must call `note_exit` for children that it reaps."""

    def __init__(self, main: MpiAgentMainThread) -> None:
        self._main = main
        self._running: dict[int, Future[int]] = {}

    @property
    def running(self) -> bool:
        """Whether any child is alive. For the main thread only."""
        return bool(self._running)

    def spawn(self, command: Sequence[str], environment: Mapping[str, str], streams: ChildStreams) -> MpiDaemonChild:
        """Start `command`. Raises TimeoutError if the main thread is busy, or ending."""
        return self._main.run(lambda: self._start(command, environment, streams))

    def note_exit(self, pid: int, status: int) -> None:
        """Record the end of a process with this wait status. Unknown processes are ignored."""
        future = self._running.pop(pid, None)
        if future is not None:
            future.set_result(os.waitstatus_to_exitcode(status))

    def close(self) -> None:
        """Release all waiting threads: the main thread is about to end, and no child is alive."""
        for future in self._running.values():
            future.set_result(-signal.SIGKILL)
        self._running.clear()

    def _start(self, command: Sequence[str], environment: Mapping[str, str], streams: ChildStreams) -> MpiDaemonChild:
        process = start_child(command, environment, **vars(streams))
        process.returncode = 0  # the main thread reaps it: Popen must not
        exit: Future[int] = Future()
        self._running[process.pid] = exit
        return MpiDaemonChild(process.pid, exit)
