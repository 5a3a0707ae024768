"""One rank's part in a named collective, and the promise of its result."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ringtrain._core.negotiation.execution import Result
from ringtrain._core.negotiation.request import NamedRequest
from ringtrain._core.process_groups.tensors import Array
from ringtrain.step_time import REDUCTION

Finish = Callable[[Result], Any]
Arrays = Callable[[], Sequence[Array]]


class NamedSubmission:
    """One rank's part in a named collective, and the promise of what `finish` makes of its result.

    `arrays`: gives this rank's tensors. `target`: of a bucket, where its results go, one behind the other; the
    tensors may lie there. `promise_kept`: the condition of all promises of a queue, which sets it. Whoever keeps
    promises notifies it afterwards, once for a batch: a lock and a condition for each tensor, as
    `concurrent.futures` has, cost more than the sum itself.
    """

    __slots__ = ("_done", "_error", "_result", "arrays", "finish", "promise_kept", "request", "since_ns", "target")

    def __init__(
        self, request: NamedRequest, arrays: Arrays, finish: Finish = list, target: Array | None = None
    ) -> None:
        self.request = request
        self.arrays = arrays
        self.finish = finish
        self.target = target
        self.promise_kept: threading.Condition | None = None
        self.since_ns = 0
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        return self._done

    def result(self, timeout: float | None = None) -> Any:
        """Wait and return the result, or raise the error. TimeoutError after `timeout` seconds."""
        if not self._done:
            with REDUCTION:
                self._wait(timeout)
        if self._error is not None:
            raise self._error
        return self._result

    def keep(self, result: Result) -> None:
        """Keep the promise with what `finish` makes of `result`, or break it with what `finish` raises; waiters
        learn of it when `promise_kept` is notified."""
        try:
            self._result = self.finish(result)
        except Exception as error:
            self._error = error
        self._end()

    def break_with(self, error: BaseException) -> None:
        """Break the promise; waiters learn of it when `promise_kept` is notified."""
        self._error = error
        self._end()

    def _end(self) -> None:
        """Hold the tensors no longer: a gradient that nobody else holds becomes a view of its bucket."""
        self.arrays, self.finish, self.target = tuple, list, None
        self._done = True

    def _wait(self, timeout: float | None) -> None:
        assert self.promise_kept is not None, "it is submitted"
        end = None if timeout is None else time.monotonic() + timeout
        with self.promise_kept:
            while not self._done:
                left_s = None if end is None else end - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise TimeoutError(f"no result within {timeout} s")
                self.promise_kept.wait(left_s)
