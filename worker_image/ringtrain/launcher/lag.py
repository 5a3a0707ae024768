"""How much later than the first rank each rank reports a step, by the clocks of the ranks' hosts."""

from collections import deque
from collections.abc import Collection, Mapping
from statistics import fmean
from typing import Final

# Steps that count: enough to be steady, few enough to follow a change.
_WINDOW: Final = 50


class Lag:
    """Takes in when ranks reported a step, and says how far each is behind the first. Not thread-safe."""

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}

    def keep(self, ranks: Collection[int]) -> None:
        """Forget ranks other than these."""
        self._recent = {rank: recent for rank, recent in self._recent.items() if rank in ranks}

    def add(self, times: Mapping[int, float]) -> None:
        """Take in when each rank reported one step; a step that one rank alone reports says nothing."""
        if len(times) < 2:
            return
        first = min(times.values())
        for rank, time in times.items():
            self._recent.setdefault(rank, deque(maxlen=_WINDOW)).append(time - first)

    def of(self, rank: int) -> float | None:
        """Seconds, the mean over the newest steps; None before the first that several ranks have reported."""
        recent = self._recent.get(rank)
        return fmean(recent) if recent else None
