"""A submitted named collective, and the promise of its result."""

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
    """A named collective that this rank has submitted, and the promise of `finish(result)`.

    `arrays`: function that returns this rank's tensors. `target`: array that receives the concatenated results of a
    bucket; the tensors may be views of it. `completed`: condition that all promises of a queue share. The queue
    notifies it once per batch, because a lock and a condition for each tensor, as in `concurrent.futures`, take longer
    than the sum itself.
    """

    __slots__ = ("_done", "_error", "_result", "arrays", "completed", "finish", "request", "since_ns", "target")

    def __init__(
        self, request: NamedRequest, arrays: Arrays, finish: Finish = list, target: Array | None = None
    ) -> None:
        self.request = request
        self.arrays = arrays
        self.finish = finish
        self.target = target
        self.completed: threading.Condition | None = None
        self.since_ns = 0
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Return whether `result` would return or raise without waiting."""
        return self._done

    def result(self, timeout: float | None = None) -> Any:
        """Wait, and return the result or raise the collective's error. Raises TimeoutError after `timeout`."""
        if not self._done:
            with REDUCTION:
                self._wait(timeout)
        if self._error is not None:
            raise self._error
        return self._result

    def keep(self, result: Result) -> None:
        """Complete the promise with `finish(result)`. If `finish` raises an error, complete the promise with that
        error."""
        try:
            self._result = self.finish(result)
        except Exception as error:
            self._error = error
        self._end()

    def fail_with(self, error: BaseException) -> None:
        """Complete the promise with `error`, which `result` then raises."""
        self._error = error
        self._end()

    def _end(self) -> None:
        """Release the references to the tensors, and mark the promise as done."""
        self.arrays, self.finish, self.target = tuple, list, None
        self._done = True

    def _wait(self, timeout: float | None) -> None:
        assert self.completed is not None, "submit it first"
        end = None if timeout is None else time.monotonic() + timeout
        with self.completed:
            while not self._done:
                left_s = None if end is None else end - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise TimeoutError(f"{self.request.kind} {self.request.name!r}: no result within {timeout} s")
                self.completed.wait(left_s)
