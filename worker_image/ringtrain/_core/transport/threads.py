"""Pool of threads that answer peers without delaying the interpreter's exit."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class TransportThreadPool(Executor):
    """Executor that starts a new thread when all others are busy, and does not delay the interpreter's exit.

    `concurrent.futures` joins its threads before `atexit` runs: a thread that serves a peer's long wait would delay the
    exit until that peer gives up, and with it the `shutdown` that would end the wait.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0
        self._threads: list[threading.Thread] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        with self._lock:
            self._free -= 1  # negative: more work than threads
            if self._free < 0:
                self._free += 1
                thread = threading.Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._work.put(run)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            threads, self._threads = self._threads, []
        for _ in threads:
            self._work.put(None)
        if wait:
            for thread in threads:
                thread.join()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            with self._lock:
                self._free += 1
