"""Where this process's time goes: input, reduction, update; the rest is compute. `ringtrain.report` sends it.

At each moment the process is in one part, so parts never add up to more than the time that has passed:

1. *reduction*: a thread that trains waits for a collective, or for new weights of the host optimizer;
2. *update*: such a thread waits while the host optimizer's thread changes weights, or changes them itself;
3. *input*: a thread waits for a batch;
4. *compute*: nothing of these. What the runtime does beside the training thread counts here, as it costs no time.

Where several threads wait at once, time counts once, for the first of the parts in this list.
"""

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

# What a report tells of each part, by the contract's names.
FIELDS: Final = ("inputWait", "reductionWait", "updateTime")
_INPUT, _REDUCTION, _UPDATE, _COMPUTE = range(4)
_HIDDEN: Final = 3  # the update that another thread makes: time of it counts only if the training thread waits


class _ThreadStepTime(threading.local):
    """Of the calling thread. `beside`: it works beside the one that trains."""

    beside = False


_thread: Final = _ThreadStepTime()


class StepTime:
    """Seconds of each part since they were last taken. For any number of threads."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._take_short: Callable[[], float] = float
        self.reset(clock)

    def reset(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin anew, with nothing under way and nothing ever measured."""
        self._clock = clock
        self._take_short()  # what was before
        self._lock = threading.Lock()
        self._inside = [0, 0, 0, 0]  # threads that are in each part
        self._seconds = [0.0, 0.0, 0.0, 0.0]
        self._measured: set[int] = set()  # parts that some time was ever in
        self._now_in = _COMPUTE
        self._since = self._clock()

    def enter(self, part: int) -> None:
        """A thread begins to be in `part`."""
        with self._lock:
            self._count()
            self._inside[part] += 1
            self._now_in = self._part()

    def leave(self, part: int) -> None:
        """A thread ends to be in `part`."""
        with self._lock:
            self._count()
            self._inside[part] = max(0, self._inside[part] - 1)  # 0: it was entered before a reset
            self._now_in = self._part()

    def follow(self, take_short: Callable[[], float]) -> None:
        """Ask for the seconds of reductions that were over too soon to be entered, since it was last asked."""
        with self._lock:
            take_short()
            self._take_short = take_short

    def take(self) -> dict[str, float]:
        """Seconds of each part that this process has ever measured, since they were last taken."""
        with self._lock:
            self._count()
            taken = {name: self._seconds[part] for part, name in enumerate(FIELDS) if part in self._measured}
            self._seconds = [0.0, 0.0, 0.0, 0.0]
            return taken

    def give_back(self, taken: dict[str, float]) -> None:
        """What was taken could not be told: it is in what is taken next."""
        with self._lock:
            for part, name in enumerate(FIELDS):
                self._seconds[part] += taken.get(name, 0.0)

    def _count(self) -> None:
        now, short_s = self._clock(), self._take_short()
        if short_s and self._now_in == _COMPUTE:  # else another thread is in a part, which counts
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
    """A context in which the calling thread is in one part. Reused: it holds nothing of the thread."""

    def __init__(self, part: int) -> None:
        self._part = part

    def __enter__(self) -> None:
        if not _thread.beside:
            measured.enter(self._part)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not _thread.beside:
            measured.leave(self._part)


class _HiddenUpdateStepTime(_StepTimePart):
    """The update that a thread makes beside the one that trains."""

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


def beside_training() -> None:
    """From now on the calling thread works beside the one that trains: what it waits for holds nothing up."""
    _thread.beside = True


# A child has none of the parent's threads, and may have been forked while one of them held the lock.
os.register_at_fork(after_in_child=measured.reset)
