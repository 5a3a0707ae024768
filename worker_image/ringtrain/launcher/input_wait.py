"""Which part of their time ranks wait for input, from the `inputWait` of their report lines."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

# A line of progress names the wait from this part on.
INPUT_BOUND: Final = 0.05
# Reports of each rank that count: enough to be steady, few enough to follow a change within a minute.
_WINDOW: Final = 50


class InputWait:
    """Takes in report lines and says how much of the time between them was spent waiting. Not thread-safe."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._recent: dict[int, deque[tuple[float, float]]] = {}

    def keep(self, ranks: Collection[int]) -> None:
        """Forget what ranks other than these have reported."""
        self._last = {rank: time for rank, time in self._last.items() if rank in ranks}
        self._recent = {rank: recent for rank, recent in self._recent.items() if rank in ranks}

    def add(self, rank: int, report: Mapping[str, Any]) -> None:
        """Take in one report. The first one of a rank says from when on its time counts."""
        time, waited = float(report["time"]), report.get("inputWait")
        before, self._last[rank] = self._last.get(rank), time
        if before is None or waited is None or time <= before:
            return
        recent = self._recent.setdefault(rank, deque(maxlen=_WINDOW))
        recent.append((min(float(waited), time - before), time - before))

    @property
    def fraction(self) -> float | None:
        """From 0 to 1, over the newest reports of all ranks; None where no rank has measured it."""
        return _fraction(span for recent in self._recent.values() for span in recent)

    def of(self, rank: int) -> float | None:
        """The same of one rank."""
        return _fraction(self._recent.get(rank, ()))


def _fraction(spans: Iterable[tuple[float, float]]) -> float | None:
    spans = list(spans)
    total = sum(seconds for _, seconds in spans)
    return sum(waited for waited, _ in spans) / total if total > 0 else None
