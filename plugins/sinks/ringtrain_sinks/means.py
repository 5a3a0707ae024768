"""Average all ranks' reports of a step into one point, for services whose runs have no ranks."""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ringtrain_sinks.base import SinkAttempt

# Seconds, on the ranks' clocks, after which a step is complete although a rank's report is missing.
_PATIENCE_S: Final = 30.0
_ODD: Final = re.compile(r"[^A-Za-z0-9_\-. :/]")


@dataclass(frozen=True)
class MeansSinkPoint:
    """Means over ranks at one step. `time`: time of the step's first report, in seconds since the epoch."""

    step: int
    time: float
    values: dict[str, float]


@dataclass
class _MeansSinkSums:
    time: float
    ranks: set[int] = field(default_factory=set)
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)


class MeansSink:
    """Base class of sinks that send means over ranks. It queues completed steps, at most `most` of them."""

    def __init__(self, attempt: SinkAttempt, most: int | None = None) -> None:
        self._attempt = attempt
        self._means = SinkStepMeans(attempt.ranks)
        self._points: deque[MeansSinkPoint] = deque(maxlen=most)

    @property
    def pending(self) -> int:
        """Number of completed steps that are not yet sent."""
        return len(self._points)

    def report(self, rank: int, report: Mapping[str, Any]) -> None:
        """Add one report of `rank`, and queue the steps that it completes."""
        self._points.extend(self._means.add(rank, report))


class SinkStepMeans:
    """Means over ranks of the loss, epoch and metrics of each step, and the sum of the ranks' samples/s.

    `ranks`: world size; a step is complete with this number of reports, or after a deadline. Steps are emitted in
    order: a report of a completed step, such as one that is repeated after a restart, is ignored.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._steps: dict[int, _MeansSinkSums] = {}
        self._last: dict[int, float] = {}
        self._over = -1

    def add(self, rank: int, report: Mapping[str, Any]) -> Iterator[MeansSinkPoint]:
        """Add one report of `rank`; yield the means of steps that are now complete."""
        step, time = int(report["step"]), float(report["time"])
        before = self._last.get(rank)
        self._last[rank] = time
        if report.get("startedFrom") is not None or step <= self._over:
            return
        entry = self._steps.setdefault(step, _MeansSinkSums(time))
        entry.ranks.add(rank)
        values = {"loss": report.get("loss"), "epoch": report.get("epoch"), **(report.get("metrics") or {})}
        values |= report.get("notFinite") or {}
        for name, value in values.items():
            if value is not None:
                total, count = entry.sums.get(plain_sink_metric_name(name), (0.0, 0))
                entry.sums[plain_sink_metric_name(name)] = total + float(value), count + 1
        if before is not None and time > before and report.get("samples") is not None:
            name = f"{plain_sink_metric_name(report.get('unit') or 'samples')}_per_second"
            total, _ = entry.sums.get(name, (0.0, 1))
            entry.sums[name] = total + report["samples"] / (time - before), 1
        yield from self._complete(time)

    def _complete(self, now: float) -> Iterator[MeansSinkPoint]:
        ready = [step for step, entry in self._steps.items() if self._ranks and len(entry.ranks) >= self._ranks]
        ready += [step for step, entry in self._steps.items() if now - entry.time > _PATIENCE_S]
        if ready:
            yield from self._until(max(ready))

    def rest(self) -> Iterator[MeansSinkPoint]:
        """Yield the means of all remaining steps, complete or not."""
        if self._steps:
            yield from self._until(max(self._steps))

    def _until(self, last: int) -> Iterator[MeansSinkPoint]:
        for step in sorted(step for step in self._steps if step <= last):
            entry = self._steps.pop(step)
            self._over = step
            if entry.sums:
                yield MeansSinkPoint(step, entry.time, {name: total / n for name, (total, n) in entry.sums.items()})


def plain_sink_metric_name(name: str) -> str:
    """Return `name` with "_" for characters that some services reject, and at most 250 characters long."""
    return _ODD.sub("_", name)[:250]
