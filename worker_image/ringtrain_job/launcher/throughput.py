"""Progress and speed of a job, computed from the reports of its ranks.

A step of the gang lasts from the time its last rank reported the previous step to the time its last rank reported this
one. Its speed is the samples of all ranks in it divided by that time. The definitions are those of the TensorFlow
benchmarks:

* *mean*: samples of all timed steps over the sum of their times;
* *uncertainty* (the `+/-`): standard error of the steps' speeds, their standard deviation / √steps;
* *jitter*: 1.4826 × the median absolute deviation of the steps' speeds from their median, which for normally
  distributed speeds estimates the standard deviation without being moved by a few slow steps;
* *total*, at the end: samples of all timed steps over the time from the first report to the last.

The first step has no predecessor and is not timed.
"""

import math
import statistics
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringtrain_job.launcher.not_finite import NotFinite, NotFiniteReports
from ringtrain_job.logs.step_times import StepTimes, Straggler

# Steps over which lag is averaged: enough to be steady, few enough to follow a change.
_LAG_STEPS = 50
WINDOW = 10_000  # limit on steps for uncertainty and jitter, so that memory is bounded
_PATIENCE_S = 10.0
# Reports of a rank over which step times are averaged: steady, while a change shows within a minute.
_RECENT = 20
# Fraction of input wait from which a progress line shows it.
_INPUT_BOUND = 0.05
# Limit on steps that some ranks have reported and others have not.
_OPEN_STEPS = 1000
# Limit on open steps with a time for each rank, so that a rank that hangs does not exhaust memory.
_TIMED_STEPS = 50
_REPORTED_STEPS = 4  # likewise, with a report of each rank
_RETAINED = ("totalSteps", "epoch", "loss")  # fields that hold until a later report of the rank has them


@dataclass(frozen=True)
class Speed:
    """Samples per second over the timed steps: mean, standard error, and jitter (robust spread)."""

    mean: float
    uncertainty: float
    jitter: float


@dataclass(frozen=True)
class Progress:
    """Progress of a job. `step`: lowest step of all reporting ranks. `loss` and `metrics`: means over the ranks that
    reported them in this step. `printed`: whether it was extracted from printed lines."""

    step: int
    total_steps: int | None
    epoch: int | None
    samples_per_s: float | None
    unit: str
    loss: float | None
    metrics: dict[str, float]
    input_wait: float | None = None
    straggler: Straggler | None = None
    samples: float = 0.0
    not_finite: Mapping[str, NotFinite] = field(default_factory=dict)
    printed: bool = False


@dataclass
class _StepReports:
    samples: float = 0.0
    ended: float = -math.inf
    times: dict[int, float] = field(default_factory=dict)
    reports: dict[int, Mapping[str, Any]] = field(default_factory=dict)


class GangThroughput:
    """Aggregator that computes a job's progress and speed from reports. Not thread-safe.

    Only ranks that report count: a script may report from rank 0 alone. Because reports of different workers arrive at
    different times, steps stay open until every rank has reported once, or for ten seconds of report time.
    """

    def __init__(self, world_size: int, nan_is_fatal: bool = False) -> None:
        self._world_size = world_size
        self.times = StepTimes(_RECENT)
        self.lag = RankLag()
        self._not_finite = NotFiniteReports(nan_is_fatal)
        self._samples = 0.0
        self._open: dict[int, _StepReports] = {}
        self._steps: dict[int, int] = {}
        # Number of ranks at each step: few steps even for thousands of ranks.
        self._ranks_at: Counter[int] = Counter()
        self._latest: dict[int, Mapping[str, Any]] = {}
        self._first_report: float | None = None
        self._begin: int | None = None
        self._first_end: float | None = None
        self._last_end: float | None = None
        self._timed_samples = 0.0
        self._speeds: deque[float] = deque(maxlen=WINDOW)
        self._closed = -1
        # Reports by rank of the newest complete step.
        self._complete_reports: dict[int, Mapping[str, Any]] = {}
        self.last_report_time: float | None = None

    def keep(self, ranks: Collection[int]) -> None:
        """Remove all ranks except `ranks` from the progress, because the world has changed."""
        self._world_size = len(ranks)
        self._steps = {rank: step for rank, step in self._steps.items() if rank in ranks}
        self._ranks_at = Counter(self._steps.values())
        self._latest = {rank: report for rank, report in self._latest.items() if rank in ranks}
        self.times.keep(ranks)
        self.lag.keep(ranks)
        self._not_finite.keep(ranks)

    def add(self, rank: int, report: Mapping[str, Any]) -> list[int]:
        """Add one report of `rank`; return the steps that all reporting ranks have now completed."""
        step, time = int(report["step"]), float(report["time"])
        self.times.add(rank, report)
        self._note_step(rank, max(step, self._steps.get(rank, step)))
        self._latest[rank] = {k: v for k, v in self._latest.get(rank, {}).items() if k in _RETAINED} | {**report}
        self._not_finite.add(rank, report)
        self._first_report = time if self._first_report is None else self._first_report
        self._begin = step if self._begin is None else min(self._begin, step)
        self.last_report_time = max(time, self.last_report_time or time)
        self._samples += float(report.get("samples") or 0)
        if step == self._closed:  # a second report of the step
            self._complete_reports[rank] = report
        if step > self._closed:
            entry = self._open.setdefault(step, _StepReports())
            entry.samples += float(report.get("samples") or 0)
            entry.ended = max(entry.ended, time)
            if len(self._open) <= _TIMED_STEPS:
                entry.times[rank] = time
            if len(self._open) <= _REPORTED_STEPS:
                entry.reports[rank] = report
        return self._close_steps()

    def _note_step(self, rank: int, step: int) -> None:
        before = self._steps.get(rank)
        self._steps[rank] = step
        if before != step:
            self._ranks_at[step] += 1
            if before is not None:
                self._ranks_at[before] -= 1
                if not self._ranks_at[before]:
                    del self._ranks_at[before]

    def _close_steps(self) -> list[int]:
        waited = (self.last_report_time or 0.0) - (self._first_report or 0.0)
        if len(self._steps) < self._world_size and waited < _PATIENCE_S and len(self._open) < _OPEN_STEPS:
            return []
        reached = min(self._ranks_at)
        ready = sorted(step for step in self._open if step <= reached)
        for step in ready:
            entry = self._open.pop(step)
            self._complete_reports = entry.reports
            self._complete(entry)
        while len(self._open) > _OPEN_STEPS:  # a rank that has stopped reporting would hold every step open
            self._open.pop(min(self._open))
        self._closed = max([self._closed, *ready])
        return ready

    def _complete(self, entry: _StepReports) -> None:
        self.lag.add(entry.times)
        if self._last_end is None:
            self._first_end = self._last_end = entry.ended
            return
        seconds = entry.ended - self._last_end
        if seconds > 0 and math.isfinite(entry.samples / seconds):
            self._speeds.append(entry.samples / seconds)
            self._timed_samples += entry.samples
            self._last_end = entry.ended

    def speed(self) -> Speed | None:
        """Return the speed over the timed steps; None before two complete steps, or without samples."""
        if self._timed_samples <= 0:
            return None
        speeds = self._speeds
        middle = statistics.median(speeds)
        jitter = 1.4826 * statistics.median(abs(speed - middle) for speed in speeds)
        return Speed(self.total() or 0.0, self.uncertainty() or 0.0, jitter)

    def uncertainty(self) -> float | None:
        """Return the standard error of the speed in samples per second; None without a speed."""
        speeds = self._speeds
        if self._timed_samples <= 0:
            return None
        mean = math.fsum(speed / len(speeds) for speed in speeds)
        # Not **, which raises OverflowError if a product is infinite.
        variance = math.fsum((speed - mean) * (speed - mean) / len(speeds) for speed in speeds)
        return math.sqrt(variance) / math.sqrt(len(speeds))

    def total(self) -> float | None:
        """Return the mean samples per second from the first complete step to the last; None if unknown."""
        if self._first_end is None or self._last_end is None or self._last_end <= self._first_end:
            return None
        return _throughput_number(self._timed_samples / (self._last_end - self._first_end))

    def progress(self) -> Progress | None:
        """Return the job's progress; None before the first report."""
        if not self._steps:
            return None
        slowest = min(self._steps, key=lambda rank: (self._steps[rank], rank))
        report = self._latest[slowest]
        not_finite = self._not_finite.now()
        reports = self._reports_at(self._steps[slowest])
        losses = _numbers(r.get("loss") for r in reports) or _numbers(r.get("loss") for r in self._latest.values())
        return Progress(
            step=self._steps[slowest],
            total_steps=report.get("totalSteps"),
            epoch=report.get("epoch"),
            samples_per_s=self.total() if self._timed_samples > 0 else None,
            unit=str(report.get("unit") or "samples"),
            loss=_mean(losses) if losses and "loss" not in not_finite else None,
            metrics={k: v for k, v in _mean_metrics(reports).items() if k not in not_finite},
            input_wait=self.times.input_fraction,
            straggler=self.times.straggler(),
            samples=self._samples,
            not_finite=not_finite,
            printed="printed" in report,
        )

    def _reports_at(self, step: int) -> list[Mapping[str, Any]]:
        """Return the ranks' reports of `step`; while it is not complete, those of the ranks that are at it."""
        if step == self._closed and self._complete_reports:
            return list(self._complete_reports.values())
        return [report for rank, report in self._latest.items() if self._steps[rank] == step]

    @property
    def first_report_time(self) -> float | None:
        """Time of the first report, on the clock of its rank's host; None before that."""
        return self._first_report

    @property
    def complete_step(self) -> int:
        """Newest step that all reporting ranks have completed; -1 before any."""
        return self._closed

    def left_s(self, progress: Progress) -> float | None:
        """Return the estimated seconds from the last report to the end of training; None if unknown."""
        first, last, begin = self._first_report, self.last_report_time, self._begin or 0
        if not progress.total_steps or first is None or last is None or progress.step <= begin:
            return None
        return max(0, progress.total_steps - progress.step) * (last - first) / (progress.step - begin)

    @property
    def first_bad_loss(self) -> NotFinite | None:
        """First reported loss that was NaN or infinite; None if there was none."""
        return self._not_finite.first_loss

    @property
    def has_loss(self) -> bool:
        """Whether any report contained a loss."""
        return self._not_finite.has_loss

    @property
    def lowest_step(self) -> int | None:
        """Step that all reporting ranks have reached; None before the first report."""
        return min(self._ranks_at, default=None)

    def step_of(self, rank: int) -> int | None:
        """Return the newest step that `rank` has reported; None without a report."""
        return self._steps.get(rank)

    def slowest(self, ranks: Collection[int]) -> int | None:
        """Return the slowest of `ranks`; None if it is unknown.

        This is the straggler, unless another rank is more than a step behind it. If so, or without a straggler, it is
        the rank at the lowest step. It is unknown if several ranks are at that step: some of them may only wait.
        """
        never = -1
        straggler = self.times.straggler()
        if straggler is not None and straggler.rank in ranks:
            lowest = min(self._steps.get(rank, never) for rank in ranks)
            if self._steps.get(straggler.rank, never) <= lowest + 1:
                return straggler.rank
        steps = {rank: self._steps.get(rank, never) for rank in ranks}
        lowest = min(steps.values(), default=never)
        last = [rank for rank, step in steps.items() if step == lowest]
        return last[0] if len(last) == 1 else None

    def delaying_rank(self, ranks: Collection[int]) -> int | None:
        """Return the slowest of `ranks` if it is the straggler or is more than one step behind another rank;
        None otherwise."""
        reporting = [rank for rank in ranks if rank in self._steps]
        rank, straggler = self.slowest(reporting), self.times.straggler()
        if rank is None or (straggler is not None and straggler.rank == rank):
            return rank
        return rank if self._steps[rank] + 1 < max(self._steps[one] for one in reporting) else None


def progress_json(progress: Progress, error: float | None, started_from: str | None = None) -> dict[str, Any]:
    """Return `progress` as a JSON object (docs/contract.md). `error`: standard error of the speed."""
    return {
        "step": progress.step,
        "totalSteps": progress.total_steps,
        "epoch": progress.epoch,
        "samplesPerSecond": progress.samples_per_s,
        "samplesPerSecondError": error,
        "samples": progress.samples,
        "unit": progress.unit,
        "loss": progress.loss,
        "notFinite": {name: vars(one) for name, one in progress.not_finite.items()},
        "metrics": progress.metrics,
        "startedFrom": started_from,
    }


def _numbers(values: Iterable[object]) -> list[float]:
    return [number for value in values if (number := _throughput_number(value)) is not None]


def _mean_metrics(reports: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of each metric over those reports that have it."""
    found = [report.get("metrics") or {} for report in reports]
    names = dict.fromkeys(name for metrics in found for name in metrics)
    return {name: _mean(values) for name in names if (values := _numbers(metrics.get(name) for metrics in found))}


def _mean(values: Sequence[float]) -> float:
    """Return the mean. Divides first: the sum may overflow although the mean does not."""
    return math.fsum(value / len(values) for value in values)


def _throughput_number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def throughput_step_line(progress: Progress, speed: Speed | None) -> str:
    """Return a progress line, such as `Step 40/300  images/sec: 5120.3 +/- 31.2 (jitter = 12.4)  loss: 0.412`."""
    parts = [f"Step {progress.step}" + (f"/{progress.total_steps}" if progress.total_steps else "")]
    if speed is not None:
        form = _throughput_format(speed.mean)
        numbers = f"{speed.mean:{form}} +/- {speed.uncertainty:{form}} (jitter = {speed.jitter:{form}})"
        parts.append(f"{progress.unit}/sec: {numbers}")
    return "  ".join(part for part in (*parts, loss_text(progress), *throughput_warnings(progress)) if part)


def _throughput_format(rate: float) -> str:
    return ".1f" if rate >= 1 else ".3g"  # a large model may take minutes for a sample


def shown_throughput(rate: float) -> str:
    """Return a rate as text, such as `5120.3`."""
    return f"{rate:{_throughput_format(rate)}}"


def loss_text(progress: Progress) -> str:
    """Return the loss as text, such as `loss: 0.412`; empty if unknown."""
    if "loss" in progress.not_finite:
        return f"loss: {progress.not_finite['loss']}"
    if progress.loss is None:
        return ""
    form = ".3f" if 0.01 <= abs(progress.loss) < 1e9 or not progress.loss else ".3e"
    return f"loss: {progress.loss:{form}}"


def throughput_warnings(progress: Progress) -> list[str]:
    """Return short warnings about waiting for input and about a straggler."""
    found = []
    if progress.input_wait is not None and progress.input_wait > _INPUT_BOUND:
        found.append(f"input-bound {progress.input_wait:.0%}".replace("%", " %"))
    if progress.straggler is not None:
        straggler = progress.straggler
        found.append(f"rank {straggler.rank} holds others up {straggler.part:.0%}".replace("%", " %"))
    return found


def throughput_total_line(unit: str, total: float) -> str:
    """Return the last progress line, such as `total images/sec: 5123.88`."""
    return f"total {unit}/sec: {total:{'.2f' if total >= 1 else '.3g'}}"


class RankLag:
    """Mean lag of each rank. Not thread-safe.

    The lag in a step is the time from the first report of that step, by any rank, to the rank's own report.
    """

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}

    def keep(self, ranks: Collection[int]) -> None:
        """Remove all ranks except `ranks`."""
        self._recent = {rank: recent for rank, recent in self._recent.items() if rank in ranks}

    def add(self, times: Mapping[int, float]) -> None:
        """Add the times at which ranks reported one step. A step with a single report is ignored."""
        if len(times) < 2:
            return
        first = min(times.values())
        for rank, time in times.items():
            self._recent.setdefault(rank, deque(maxlen=_LAG_STEPS)).append(time - first)

    def of(self, rank: int) -> float | None:
        """Return the mean lag of `rank` in seconds over its newest steps; None if unknown."""
        recent = self._recent.get(rank)
        return statistics.fmean(recent) if recent else None
