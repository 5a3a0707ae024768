"""Parts of the ranks' step time (input, compute, reduction, update), and the straggler, computed from reports."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median_high
from typing import Any, Final

# Fraction of a step by which a rank must work longer than the others to be reported as a straggler.
STRAGGLES: Final = 0.25
# Fewer steps would give an unstable result.
_FEWEST_STEPS: Final = 5
_MEASURED: Final = {"input": "inputWait", "reduction": "reductionWait", "update": "updateTime"}


@dataclass
class _RankTimes:
    """Sums over the intervals between one rank's reports. `waited_of`: seconds in which input was measured."""

    steps: float = 0.0
    seconds: float = 0.0
    waited_of: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)

    def fade(self, factor: float) -> None:
        self.steps *= factor
        self.seconds *= factor
        self.waited_of *= factor
        self.parts = {part: seconds * factor for part, seconds in self.parts.items()}


@dataclass(frozen=True)
class Straggler:
    """Rank for which the others wait.

    `seconds`: time by which the rank's work per step exceeds the median of the other ranks. `part`: that time as a
    fraction of a step.
    """

    rank: int
    seconds: float
    part: float


class StepTimes:
    """Parts of the step time of each rank, computed from reports. Not thread-safe.

    `recent`: approximate number of a rank's newest reports that count, older ones less; None: all reports count
    equally.
    """

    def __init__(self, recent: int | None = None) -> None:
        self._fade = 1.0 if recent is None else 1.0 - 1.0 / recent
        self._last: dict[int, tuple[int, float]] = {}
        self._ranks: dict[int, _RankTimes] = {}

    def keep(self, ranks: Collection[int]) -> None:
        """Delete the measurements of all ranks except `ranks`. The interval before the next report of each rank does
        not count."""
        self._last = {}
        self._ranks = {rank: sums for rank, sums in self._ranks.items() if rank in ranks}

    def add(self, rank: int, report: Mapping[str, Any]) -> None:
        """Add one report of `rank`. The first report of a rank only starts the rank's first interval."""
        step, time = int(report["step"]), float(report["time"])
        before, self._last[rank] = self._last.get(rank), (step, time)
        parts = {part: float(report[name]) for part, name in _MEASURED.items() if report.get(name) is not None}
        if before is None or not parts or time <= before[1]:
            return
        seconds = time - before[1]
        sums = self._ranks.setdefault(rank, _RankTimes())
        sums.fade(self._fade)
        sums.steps += max(0, step - before[0])
        sums.seconds += seconds
        sums.waited_of += seconds if "input" in parts else 0.0
        for part, spent in parts.items():
            sums.parts[part] = sums.parts.get(part, 0.0) + min(spent, seconds)

    def of(self, rank: int) -> dict[str, float] | None:
        """Return the mean seconds per step of each part for `rank`; None if unknown. `compute` is the unmeasured
        rest."""
        sums = self._ranks.get(rank)
        if sums is None or sums.steps <= 0:
            return None
        rest = max(0.0, sums.seconds - sum(sums.parts.values()))
        parts = {"input": sums.parts.get("input"), "compute": rest, **sums.parts}
        return {part: seconds / sums.steps for part, seconds in parts.items() if seconds is not None}

    def mean(self) -> dict[str, float] | None:
        """Return the seconds per step of each part, averaged over all measured ranks; None if unknown."""
        known = [parts for rank in self._ranks if (parts := self.of(rank)) is not None]
        names = dict.fromkeys(name for parts in known for name in parts)
        return {name: fmean(parts.get(name, 0.0) for parts in known) for name in names} or None

    def input_part(self, rank: int) -> float | None:
        """Return the fraction of time, 0 to 1, that `rank` waited for input; None if not measured."""
        return _input_part([self._ranks[rank]] if rank in self._ranks else [])

    @property
    def input_fraction(self) -> float | None:
        """Fraction of time, 0 to 1, that all ranks together waited for input; None if not measured."""
        return _input_part(list(self._ranks.values()))

    def longest(self) -> Straggler | None:
        """Return the rank with the most time of work per step (without waiting for reductions). None if fewer than two
        ranks have measured enough steps."""
        own = {
            rank: (sums.seconds - sums.parts["reduction"]) / sums.steps
            for rank, sums in self._ranks.items()
            if "reduction" in sums.parts and sums.steps >= _FEWEST_STEPS
        }
        if len(own) < 2:
            return None
        rank = max(own, key=lambda one: (own[one], -one))
        whole = fmean(self._ranks[one].seconds / self._ranks[one].steps for one in own)
        longer = own[rank] - median_high(seconds for one, seconds in own.items() if one != rank)
        return Straggler(rank, max(0.0, longer), max(0.0, longer) / whole)

    def straggler(self) -> Straggler | None:
        """Return the result of `longest` if the others lose more than a quarter of a step by that rank; None
        otherwise."""
        found = self.longest()
        return found if found is not None and found.part > STRAGGLES else None


def _input_part(ranks: Collection[_RankTimes]) -> float | None:
    of = sum(sums.waited_of for sums in ranks)
    return sum(sums.parts.get("input", 0.0) for sums in ranks) / of if of > 0 else None
