"""Runs collectives one after the other, in the order in which they were submitted."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

from ringtrain._core.communicators.turn import Turn
from ringtrain.errors import NotInitializedError
from ringtrain.step_time import REDUCTION, beside_training

P = ParamSpec("P")
T = TypeVar("T")


class Handle(Generic[T]):
    """A collective under way, as the `_async` functions return it. `synchronize` gives its result or its error."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def poll(self) -> bool:
        """Whether `synchronize` would return, or raise, at once."""
        return self._future.done()

    def synchronize(self) -> T:
        """Wait for the result. Raises what the collective raised, on every rank; bounded like the collective."""
        with REDUCTION:
            return self._future.result()

    wait = synchronize


def poll(handle: Handle[Any]) -> bool:
    """Whether the collective behind `handle` has ended."""
    return handle.poll()


def synchronize(handle: Handle[T]) -> T:
    """Wait for the collective behind `handle`; return its result or raise its error."""
    return handle.synchronize()


class Executor:
    """One collective at a time, first come first served: that is the order peers must meet in.

    What is submitted runs on a thread of its own. What is called runs in the calling thread if nothing is pending:
    a hop to another thread and back costs as much as a small collective.
    """

    def __init__(self) -> None:
        self.turn = Turn()
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._refusal = ""  # why nothing begins any more

    def call(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        if not self.turn.take_if_free():
            return self.submit(partial(work, *arguments, **named)).synchronize()
        try:
            with REDUCTION:
                return work(*arguments, **named)
        finally:
            self.turn.pass_on()

    def submit(self, work: Callable[[], T]) -> Handle[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._refusal:
                raise NotInitializedError(self._refusal)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ringtrain-executor", daemon=True)
                self._thread.start()
            self.turn.want()
            self._queue.put((work, future))
        return Handle(future)

    def stop(self) -> None:
        """Begin nothing any more; what has not begun fails."""
        with self._lock:
            self._refusal = self._refusal or "ringtrain has been shut down; call ringtrain.init() first"
            self.turn.want()  # nobody gets it without being asked whether this has stopped
            self._queue.put(None)

    def disown(self) -> None:
        """In a forked process: begin nothing. Threads that are not there may have had the locks."""
        self._lock = threading.Lock()
        self._refusal = "this process was forked from a rank, and is none: only the rank can call its collectives"
        self.turn.disown()

    def wait_stopped(self, timeout_s: float) -> None:
        """Wait for what is under way, in whichever thread. The world must have been left, so that it ends.

        Work of this very thread is not waited for: a signal's handler may leave the world in the middle of it.
        """
        self.turn.await_end(timeout_s)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def in_flight(self) -> str:
        """Nothing: its collectives have no names, and what follows them waits for them."""
        return ""

    def _run(self) -> None:
        beside_training()
        while (item := self._queue.get()) is not None:
            work, future = item
            with self.turn.taken():
                self._run_one(work, future)
            del item, work, future  # or the last result would live as long as this thread has nothing to do
            self.turn.want(-1)

    def _run_one(self, work: Callable[[], Any], future: Future[Any]) -> None:
        if self._refusal:
            future.set_exception(NotInitializedError("ringtrain was shut down before this collective began"))
            return
        try:
            future.set_result(work())
        except BaseException as error:  # whoever synchronizes gets it
            future.set_exception(error)
