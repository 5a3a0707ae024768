"""Measurement of the time that this process spends in input, reduction, update and compute, for `ringtrain.report`.

At each moment the process is in exactly one part, so the sum of the parts never exceeds the elapsed time:

1. *reduction*: a training thread waits for a collective, or for new weights of the host optimizer;
2. *update*: a training thread waits while the host optimizer's thread changes weights, or changes them itself;
3. *input*: a thread waits for a batch;
4. *compute*: none of these. Work of background threads counts here, because the training thread does not wait for it.

If several threads wait at once, the time counts once, for the first of the parts in this list.
"""

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

# Names of the parts in a report, defined by the contract.
FIELDS: Final = ("inputWait", "reductionWait", "updateTime")
_INPUT, _REDUCTION, _UPDATE, _COMPUTE = range(4)
_HIDDEN: Final = 3  # an update by another thread: its time counts only if the training thread waits


class _ThreadStepTime(threading.local):
    """State of the calling thread. `is_background`: the thread is not the training thread."""

    is_background = False


_thread: Final = _ThreadStepTime()


class StepTime:
    """Seconds that this process spent in each part of a step since the last `take`. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._take_short: Callable[[], float] = float
        self.reset(clock)

    def reset(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Restart the measurement with no part active."""
        self._clock = clock
        self._take_short()  # discards the earlier reductions
        self._lock = threading.Lock()
        self._inside = [0, 0, 0, 0]  # number of threads in each part
        self._seconds = [0.0, 0.0, 0.0, 0.0]
        self._measured: set[int] = set()  # parts that were ever active
        self._now_in = _COMPUTE
        self._since = self._clock()

    def enter(self, part: int) -> None:
        """Record that the calling thread enters `part`, such as a reduction."""
        with self._lock:
            self._count()
            self._inside[part] += 1
            self._now_in = self._part()

    def leave(self, part: int) -> None:
        """Record that the calling thread leaves `part`."""
        with self._lock:
            self._count()
            self._inside[part] = max(0, self._inside[part] - 1)  # 0: the thread entered before a reset
            self._now_in = self._part()

    def follow(self, take_short: Callable[[], float]) -> None:
        """Register a function that returns the seconds of reductions too short for `enter` and `leave`.

        `take_short` returns the seconds since its last call.
        """
        with self._lock:
            take_short()
            self._take_short = take_short

    def take(self) -> dict[str, float]:
        """Return the seconds in each part since the last call. Leaves out parts that were never active."""
        with self._lock:
            self._count()
            taken = {name: self._seconds[part] for part, name in enumerate(FIELDS) if part in self._measured}
            self._seconds = [0.0, 0.0, 0.0, 0.0]
            return taken

    def give_back(self, taken: dict[str, float]) -> None:
        """Add `taken`, a result of `take` that could not be sent, to the next result."""
        with self._lock:
            for part, name in enumerate(FIELDS):
                self._seconds[part] += taken.get(name, 0.0)

    def _count(self) -> None:
        now, short_s = self._clock(), self._take_short()
        if short_s and self._now_in == _COMPUTE:  # else another thread's part counts
            short_s = min(short_s, now - self._since)
            self._seconds[_REDUCTION] += short_s
            self._since += short_s
            self._measured.add(_REDUCTION)
        self._seconds[self._now_in] += now - self._since
        self._since = now

    def _part(self) -> int:
        inside = self._inside
        if inside[_REDUCTION]:
            part = _UPDATE if inside[_HIDDEN] else _REDUCTION
        elif inside[_UPDATE]:
            part = _UPDATE
        else:
            part = _INPUT if inside[_INPUT] else _COMPUTE
        self._measured.add(part)
        return part


class _StepTimePart:
    """Context manager that counts the calling thread's time as one part of a step. Reusable by all threads."""

    def __init__(self, part: int) -> None:
        self._part = part

    def __enter__(self) -> None:
        if not _thread.is_background:
            measured.enter(self._part)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not _thread.is_background:
            measured.leave(self._part)


class _HiddenUpdateStepTime(_StepTimePart):
    """Context manager that counts the time of an optimizer update that runs in a background thread."""

    def __enter__(self) -> None:
        measured.enter(_HIDDEN)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        measured.leave(_HIDDEN)


measured: Final = StepTime()
INPUT: Final = _StepTimePart(_INPUT)
REDUCTION: Final = _StepTimePart(_REDUCTION)
UPDATE: Final = _StepTimePart(_UPDATE)
HIDDEN_UPDATE: Final = _HiddenUpdateStepTime(_HIDDEN)


def mark_background_thread() -> None:
    """Mark the calling thread as a background thread, whose waits are not counted."""
    _thread.is_background = True


# A forked child has none of the parent's threads, and one of them may have owned the lock.
os.register_at_fork(after_in_child=measured.reset)
