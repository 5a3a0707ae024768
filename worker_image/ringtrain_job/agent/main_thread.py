"""Have the agent's main thread do something, and wait for the result."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class MainThread:
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
