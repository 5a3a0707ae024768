"""Child processes of the agent that are not ranks, such as mpirun's daemons. The main thread starts and reaps them.

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
    """Executor of functions on the agent's main thread. `post` schedules a function there. `patience_s`:
    seconds in which the work of each `run` must begin."""

    def __init__(self, post: Callable[[Callable[[], None]], None], patience_s: float) -> None:
        self._post = post
        self._patience_s = patience_s

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` on the main thread; return its result. Raises the errors of `work`, and TimeoutError if `work`
        does not begin within `patience_s`."""
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
    """Open file descriptors that become the child's stdin, stdout and stderr."""

    stdin: int
    stdout: int
    stderr: int


@dataclass(frozen=True)
class MpiDaemonChild:
    """A started child process. `exit`: future of its exit code, negative for a signal."""

    pid: int
    exit: "Future[int]"


class MpiDaemonSpawner(Protocol):
    """Interface for starting child processes. Raises OSError if a command cannot be executed."""

    def spawn(self, command: Sequence[str], environment: Mapping[str, str], streams: ChildStreams) -> MpiDaemonChild:
        """Start `command` as a session leader; return its PID and the future of its exit code."""


class MpiDaemonChildren:
    """`MpiDaemonSpawner` that starts children on the agent's main thread. That thread reports exits by `note_exit`."""

    def __init__(self, main: MpiAgentMainThread) -> None:
        self._main = main
        self._running: dict[int, Future[int]] = {}

    @property
    def running(self) -> bool:
        """Whether any child is alive. Call it on the main thread only."""
        return bool(self._running)

    def spawn(self, command: Sequence[str], environment: Mapping[str, str], streams: ChildStreams) -> MpiDaemonChild:
        """Start `command` on the main thread, and return the child. Raises TimeoutError if that thread is busy or
        ending."""
        return self._main.run(lambda: self._start(command, environment, streams))

    def note_exit(self, pid: int, status: int) -> None:
        """Record the wait status of a child that has ended. PIDs of other processes are ignored."""
        future = self._running.pop(pid, None)
        if future is not None:
            future.set_result(os.waitstatus_to_exitcode(status))

    def close(self) -> None:
        """Release all threads that wait for an exit. Call it when the main thread ends and no child is alive."""
        for future in self._running.values():
            future.set_result(-signal.SIGKILL)
        self._running.clear()

    def _start(self, command: Sequence[str], environment: Mapping[str, str], streams: ChildStreams) -> MpiDaemonChild:
        process = start_child(command, environment, **vars(streams))
        process.returncode = 0  # the main thread reaps it: Popen must not
        exit: Future[int] = Future()
        self._running[process.pid] = exit
        return MpiDaemonChild(process.pid, exit)
