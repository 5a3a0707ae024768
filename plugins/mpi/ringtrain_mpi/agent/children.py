"""Processes of the agent that are no ranks, started by its main thread for whoever asks.

The main thread of an agent reaps every child, ranks and adopted orphans alike; so it starts them, too, and knows a
child before it can end.
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
    """`post` hands a function to the main thread, which calls it soon. Nothing waits longer than `patience_s`."""

    def __init__(self, post: Callable[[Callable[[], None]], None], patience_s: float) -> None:
        self._post = post
        self._patience_s = patience_s

    def run(self, work: Callable[[], T]) -> T:
        """`work()`, done by the main thread; its errors are raised here. TimeoutError: it did not get to it."""
        done: Future[T] = Future()

        def do() -> None:
            if not done.set_running_or_notify_cancel():
                return  # nobody waits any more
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
    """A started process. `exit`: its code, negative for a signal, once it has ended."""

    pid: int
    exit: "Future[int]"


class MpiDaemonSpawner(Protocol):
    """Starts processes. OSError: it cannot be executed."""

    def spawn(self, command: Sequence[str], environment: Mapping[str, str], streams: ChildStreams) -> MpiDaemonChild:
        """Start `command` as the leader of a session of its own."""


class MpiDaemonChildren:
    """An `MpiDaemonSpawner` that works in the main thread, which calls `note_exit` for children that it reaps."""

    def __init__(self, main: MpiAgentMainThread) -> None:
        self._main = main
        self._running: dict[int, Future[int]] = {}

    @property
    def running(self) -> bool:
        """Whether any child lives. Of the main thread only."""
        return bool(self._running)

    def spawn(self, command: Sequence[str], environment: Mapping[str, str], streams: ChildStreams) -> MpiDaemonChild:
        """Start `command`. TimeoutError: the main thread is busy, or ending."""
        return self._main.run(lambda: self._start(command, environment, streams))

    def note_exit(self, pid: int, status: int) -> None:
        """A process ended, with this wait status. Others than ours are ignored."""
        future = self._running.pop(pid, None)
        if future is not None:
            future.set_result(os.waitstatus_to_exitcode(status))

    def close(self) -> None:
        """The main thread is about to end, and no child is left: nobody need wait for one any more."""
        for future in self._running.values():
            future.set_result(-signal.SIGKILL)
        self._running.clear()

    def _start(self, command: Sequence[str], environment: Mapping[str, str], streams: ChildStreams) -> MpiDaemonChild:
        process = start_child(command, environment, **vars(streams))
        process.returncode = 0  # reaped by the main thread, with everything else: Popen need not care
        exit: Future[int] = Future()
        self._running[process.pid] = exit
        return MpiDaemonChild(process.pid, exit)
