"""Curves and last steps for the page, collected from one attempt's reports in bounded memory."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ringtrain_job.logs.step_times import StepTimes
from ringtrain_page.curves import PageCurve

# Maximum number of points of the speed curve, and minimum number of reports for each of them.
_MOST_PARTS, _REPORTS_OF_A_PART = 60, 4
# A report's samples are spread over this many points of the time since the report before it.
_PLACES: Final = 8
# Limit of curves of a user's own metrics: each needs up to some hundred KB.
MOST_OWN: Final = 30


@dataclass
class PageMetrics:
    """Curves of loss, speed and the user's metrics, and the last step of each rank.

    `seconds`, `epochs`: time and epoch of each step's report. `bad`: steps at which a metric was not finite, by name of
    the metric. `times`: parts of the ranks' time. `reported`: time of each rank's last report, and the number of its
    reports. `left_out`: whether there are metrics beyond `MOST_OWN`, which have no curve.
    """

    loss: PageCurve = field(default_factory=PageCurve)
    samples: PageCurve = field(default_factory=lambda: PageCurve(width=0.01))
    seconds: PageCurve = field(default_factory=PageCurve)
    epochs: PageCurve = field(default_factory=PageCurve)
    bad: dict[str, PageCurve] = field(default_factory=dict)
    own: dict[str, PageCurve] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    times: StepTimes = field(default_factory=StepTimes)
    reported: dict[int, tuple[float, int]] = field(default_factory=dict)
    left_out: bool = False
    first: float | None = None
    last: float | None = None
    unit: str = "samples"

    def add(self, rank: int, report: Mapping[str, Any]) -> None:
        """Add one report of `rank`."""
        step, time = report["step"], report["time"]
        if report.get("startedFrom") is not None:
            return
        self.first = time if self.first is None else min(self.first, time)
        self.last = time if self.last is None else max(self.last, time)
        self._add_samples(rank, time, self.first, report.get("samples"))
        self.times.add(rank, report)
        self.steps[rank] = max(step, self.steps.get(rank, step))
        self.unit = report.get("unit") or self.unit
        self.seconds.add(step, max(0.0, time - self.first))
        self.epochs.add(step, report.get("epoch"))
        self.loss.add(step, report.get("loss"))
        for name in report.get("notFinite") or ():
            if name in self.bad or len(self.bad) < MOST_OWN:
                self.bad.setdefault(name, PageCurve()).add(step, 1.0)
        for name, value in (report.get("metrics") or {}).items():
            if name in self.own or len(self.own) < MOST_OWN:
                self.own.setdefault(name, PageCurve()).add(step, value)
            else:
                self.left_out = True

    def keep(self, ranks: Collection[int]) -> None:
        """Remove the steps and times of ranks that are not in `ranks`: they have left the elastic world."""
        self.steps = {rank: step for rank, step in self.steps.items() if rank in ranks}
        self.times.keep(ranks)

    def _add_samples(self, rank: int, time: float, first: float, samples: float | None) -> None:
        """Add a report's samples to the speed curve. A rank's first report is skipped: its duration is unknown."""
        before, count = self.reported.get(rank, (time, 0))
        self.reported[rank] = time, count + 1
        if count and samples is not None:
            for place in range(_PLACES):
                at = before + (time - before) * (place + 0.5) / _PLACES
                self.samples.add(max(0.0, at - first), samples / _PLACES)

    def curves(self) -> list[dict[str, Any]]:
        """Return the curves with at least two points or with values that are not finite: name, axis, points, and steps
        with NaN or infinite values.

        A curve by steps ends at the lowest step of all reporting ranks, as the run's progress does.
        """
        last_step = min(self.steps.values(), default=0)
        reports = max((count for _, count in self.reported.values()), default=1) - 1
        parts, seconds = min(_MOST_PARTS, reports // _REPORTS_OF_A_PART), (self.last or 0.0) - (self.first or 0.0)
        none, own = PageCurve(), {*self.own, *self.bad} - {"loss"}
        drawn = [
            ("loss", "step", self.loss.means(last_step)),
            (f"{self.unit}/s", "s", self.samples.rates(parts, seconds) if parts > 1 else []),
            *((name, "step", self.own.get(name, none).means(last_step)) for name in sorted(own)),
        ]
        return [
            {"name": name, "of": of, "points": points, "bad": self.bad.get(name, none).means()}
            for name, of, points in drawn
            if len(points) > 1 or name in self.bad
        ]

    def axes(self) -> dict[str, list[list[float]]]:
        """Return two curves that convert a step into seconds since the first report, and into an epoch."""
        return {"s": self.seconds.means(), "epoch": self.epochs.means()}
