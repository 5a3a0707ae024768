"""One rank's part in a named collective, and the promise of its result."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ringtrain.collectives.tensors import Array
from ringtrain.negotiation.execution import Result
from ringtrain.negotiation.request import Request

Finish = Callable[[Result], Any]
Arrays = Callable[[], Sequence[Array]]


class Promise:
    """The result of one submission, which the queue's thread keeps or breaks.

    `kept`: the condition of all promises of a queue. Whoever keeps promises notifies it afterwards, once for a
    batch: a lock and a condition for each tensor, as `concurrent.futures` has, cost more than the sum itself.
    """

    __slots__ = ("_done", "_error", "_kept", "_result")

    def __init__(self, kept: threading.Condition) -> None:
        self._kept = kept
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        return self._done

    def result(self, timeout: float | None = None) -> Any:
        """Wait and return the result, or raise the error. TimeoutError after `timeout` seconds."""
        if not self._done:
            self._wait(timeout)
        if self._error is not None:
            raise self._error
        return self._result

    def set_result(self, result: Any) -> None:
        """Keep the promise; waiters learn of it when `kept` is notified."""
        self._result = result
        self._done = True

    def set_exception(self, error: BaseException) -> None:
        """Break the promise; waiters learn of it when `kept` is notified."""
        self._error = error
        self._done = True

    def _wait(self, timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        with self._kept:
            while not self._done:
                left_s = None if end is None else end - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise TimeoutError(f"no result within {timeout} s")
                self._kept.wait(left_s)


@dataclass(slots=True, eq=False)  # not frozen: that takes thrice as long to make
class Submission:
    """One rank's part in a named collective, as `NamedQueue.submit` takes it apart.

    `target`: of a bucket, where its results go, one behind the other; the tensors may lie there. `promise`: of
    what `finish` makes of the results; there once it is submitted.
    """

    request: Request
    arrays: Arrays
    finish: Finish
    target: Array | None = None
    promise: Promise | None = None
    since_ns: int = 0

    def finish_with(self, result: Result) -> None:
        """Keep the promise with what `finish` makes of `result`, or break it with what `finish` raises."""
        assert self.promise is not None, "it is in flight"
        try:
            self.promise.set_result(self.finish(result))
        except Exception as error:
            self.promise.set_exception(error)
