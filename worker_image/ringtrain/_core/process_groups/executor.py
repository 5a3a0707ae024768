"""Executor that runs a process group's collectives in order, and handles of those in progress."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

from ringtrain.errors import NotInitializedError
from ringtrain.step_time import REDUCTION, mark_background_thread

P = ParamSpec("P")
T = TypeVar("T")


class Handle(Generic[T]):
    """Collective in progress, as returned by functions such as `allreduce_async`."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def poll(self) -> bool:
        """Return whether the collective has ended, so that `synchronize` does not wait."""
        return self._future.done()

    def synchronize(self) -> T:
        """Wait for the collective and return its result, or raise its error. The collective's timeout limits the
        wait."""
        with REDUCTION:
            return self._future.result()

    wait = synchronize


def poll(handle: Handle[Any]) -> bool:
    """Return whether the collective of `handle` has ended."""
    return handle.poll()


def synchronize(handle: Handle[T]) -> T:
    """Wait for the collective of `handle`; return its result or raise its error."""
    return handle.synchronize()


class ProcessGroupTurn:
    """Lock for the collectives of several groups: one runs at a time, in the order in which other ranks run them."""

    def __init__(self) -> None:
        self.held = threading.Lock()
        self.wanted = 0
        self._counting = threading.Lock()
        self._holder = 0  # the thread that owns the lock

    def want(self, step: int = 1) -> None:
        """Add `step` to `wanted`, the number of threads that hold the lock or wait for it."""
        with self._counting:
            self.wanted += step

    def disown(self) -> None:
        """Replace the lock in a forked process, so that no collective can run there."""
        self._counting = threading.Lock()
        self.wanted = 1

    def take_if_free(self) -> bool:
        """Take the lock if no thread holds it or waits. Return whether it was taken; `pass_on` releases it."""
        with self._counting:
            if self.wanted:
                return False
            self.wanted = 1
        self.held.acquire()  # compiled code may own it without being counted
        self._holder = threading.get_ident()
        return True

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count the calling thread in `wanted` while it finishes a collective that compiled code began."""
        self.want()
        self._holder = threading.get_ident()
        try:
            yield
        finally:
            self._holder = 0
            self.want(-1)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the lock within the context, for a thread that `wanted` counts already."""
        with self.held:
            self._holder = threading.get_ident()
            yield
            self._holder = 0

    def pass_on(self) -> None:
        self._holder = 0
        self.held.release()
        self.want(-1)

    def await_end(self, timeout_s: float) -> None:
        """Wait until the running collective has ended; return at once if this thread itself runs it."""
        if self._holder != threading.get_ident() and self.held.acquire(timeout=timeout_s):
            self.held.release()


class ProcessGroupExecutor:
    """Runner of collectives: one at a time, in the order of submission, which must be the same on all ranks.

    Submitted work runs on the executor's thread. `call` runs in the calling thread if nothing is pending, because
    switching threads twice costs as much as a small collective.
    """

    def __init__(self) -> None:
        self.turn = ProcessGroupTurn()
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._refusal = ""  # why no more work is accepted

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
        """Accept no more work, and fail the work that has not begun."""
        with self._lock:
            self._refusal = self._refusal or "ringtrain has been shut down; call ringtrain.init() first"
            self.turn.want()  # every later call checks whether this has stopped
            self._queue.put(None)

    def disown(self) -> None:
        """Refuse all further work, because this is a forked process and not a rank."""
        self._lock = threading.Lock()
        self._refusal = "this process was forked from a rank, and is none: only the rank can call its collectives"
        self.turn.disown()

    def wait_stopped(self, timeout_s: float) -> None:
        """Wait for work in progress in other threads. Call this after the world was left, so that the work ends.

        Does not wait for work of the calling thread, because a signal handler may leave the world during it.
        """
        self.turn.await_end(timeout_s)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def in_flight(self) -> str:
        """Return "": collectives that run in order need no names in messages about late ranks."""
        return ""

    def _run(self) -> None:
        mark_background_thread()
        while (item := self._queue.get()) is not None:
            work, future = item
            with self.turn.taken():
                self._run_one(work, future)
            del item, work, future  # else the last result would stay alive while this thread is idle
            self.turn.want(-1)

    def _run_one(self, work: Callable[[], Any], future: Future[Any]) -> None:
        if self._refusal:
            future.set_exception(NotInitializedError("ringtrain was shut down before this collective began"))
            return
        try:
            future.set_result(work())
        except BaseException as error:  # raised by `synchronize`
            future.set_exception(error)
