"""Curve for the page that averages any number of points into a bounded number of bins."""

import math
from dataclasses import dataclass, field

MOST_BINS = 1000
# Sums of values up to this limit, and differences of their means, are finite in JSON and in the page.
_LARGEST = 1e300


@dataclass
class PageCurve:
    """Curve that stores means of its values in at most `MOST_BINS` bins of equal width. Positions are >= 0.

    When one more bin would be needed, every bin doubles its width, so memory does not grow with the run.
    """

    width: float = 1.0
    _bins: dict[int, tuple[float, int]] = field(default_factory=dict)

    def add(self, position: float, value: float | None) -> None:
        """Add `value` at `position`. None, NaN, infinities and values beyond 1e300 are ignored."""
        if value is None or not abs(value) <= _LARGEST:
            return
        total, count = self._bins.get(key := int(position / self.width), (0.0, 0))
        self._bins[key] = (total + value, count + 1)
        while len(self._bins) > MOST_BINS:
            self._widen()

    def _widen(self) -> None:
        """Double the width of all bins."""
        self.width *= 2
        before, self._bins = self._bins, {}
        for key, (total, count) in before.items():
            other_total, other_count = self._bins.get(key // 2, (0.0, 0))
            self._bins[key // 2] = (other_total + total, other_count + count)

    def means(self, last: float = math.inf) -> list[list[float]]:
        """Return the curve's points [start of the bin, mean of its values] up to the position `last`, in order."""
        points = [[key * self.width, total / count] for key, (total, count) in sorted(self._bins.items())]
        return [point for point in points if point[0] <= last]

    def rates(self, count: int, length: float) -> list[list[float]]:
        """Return [start, sum of values / duration] for `count` equal parts of 0 to `length`, for example samples/s.

        `length` is the last added position. A part without values has rate 0. A bin's values are spread evenly over the
        bin.
        """
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
