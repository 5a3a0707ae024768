"""A curve of any number of points in a bounded number of bins."""

import math
from dataclasses import dataclass, field

MOST_BINS = 1000
# Sums of no more than so large values, and differences of their means, are numbers that JSON and a page have.
_LARGEST = 1e300


@dataclass
class PageCurve:
    """Means of values by position (0 and above), in at most `MOST_BINS` bins of equal width.

    A bin that would be one too many makes every bin twice as wide; so memory does not grow with the run.
    """

    width: float = 1.0
    _bins: dict[int, tuple[float, int]] = field(default_factory=dict)

    def add(self, position: float, value: float | None) -> None:
        """Take in `value` at `position`; None, NaN, infinities and what is nearly one are left out."""
        if value is None or not abs(value) <= _LARGEST:
            return
        total, count = self._bins.get(key := int(position / self.width), (0.0, 0))
        self._bins[key] = (total + value, count + 1)
        while len(self._bins) > MOST_BINS:
            self._widen()

    def _widen(self) -> None:
        self.width *= 2
        before, self._bins = self._bins, {}
        for key, (total, count) in before.items():
            others, so_far = self._bins.get(key // 2, (0.0, 0))
            self._bins[key // 2] = (others + total, so_far + count)

    def means(self) -> list[list[float]]:
        """[position of the bin's beginning, mean of its values], by position."""
        return [[key * self.width, total / count] for key, (total, count) in sorted(self._bins.items())]

    def rates(self, count: int, length: float) -> list[list[float]]:
        """[position, sum of values by length] of `count` equal parts of the positions from 0 to `length`, the last
        one that was added: where nothing was added, the rate is 0. A bin's values count evenly in all of it."""
        if not self._bins or length <= 0:
            return []
        part, sums = length / count, [0.0] * count
        for key, (total, _) in self._bins.items():
            begin, end = key * self.width / part, min((key + 1) * self.width, length) / part
            first = min(count - 1, int(begin))
            for at in range(first, max(first + 1, min(count, math.ceil(end)))):
                share = (min(end, at + 1) - max(begin, at)) / (end - begin) if end > begin else 1.0
                sums[at] += total * share
        return [[at * part, total / part] for at, total in enumerate(sums)]
