"""What a page shows of the reports of one attempt, in bounded memory, while they come or from their file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ringtrain.page.curves import Curve
from ringtrain.page.step_times import StepTimes

# Parts of a run for which a speed is drawn: no more, and none of fewer steps, which would show how steps fall.
_MOST_PARTS, _STEPS_OF_A_PART = 60, 4
# Curves of a user's own metrics: each holds up to some hundred KB.
MOST_OWN: Final = 30


@dataclass
class Metrics:
    """Curves, and where each rank is. `times`: where ranks' time goes. `left_out`: names of metrics beyond
    `MOST_OWN`, of which no curve is kept."""

    loss: Curve = field(default_factory=Curve)
    samples: Curve = field(default_factory=lambda: Curve(width=0.01))
    own: dict[str, Curve] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    times: StepTimes = field(default_factory=StepTimes)
    left_out: bool = False
    begin: int | None = None
    first: float | None = None
    last: float | None = None
    unit: str = "samples"
    total_steps: int | None = None

    def add(self, rank: int, report: Mapping[str, Any]) -> None:
        """Take in one report of `rank`. Raises KeyError, TypeError or ValueError for what is none."""
        step, time = int(report["step"]), float(report["time"])
        if report.get("startedFrom") is not None:
            return
        self.first = time if self.first is None else min(self.first, time)
        self.last = time if self.last is None else max(self.last, time)
        if rank in self.steps:  # how long a rank's first step took is not known
            self.samples.add(max(0.0, time - self.first), report.get("samples"))
        self.times.add(rank, report)
        self.steps[rank] = max(step, self.steps.get(rank, step))
        self.begin = step if self.begin is None else min(self.begin, step)
        self.unit = report.get("unit") or self.unit
        self.total_steps = report.get("totalSteps") or self.total_steps
        self.loss.add(step, report.get("loss"))
        for name, value in (report.get("metrics") or {}).items():
            if name in self.own or len(self.own) < MOST_OWN:
                self.own.setdefault(name, Curve()).add(step, value)
            else:
                self.left_out = True

    def curves(self) -> list[dict[str, Any]]:
        """Name, axis and points of every curve that has two points."""
        steps = max(self.steps.values(), default=0) - (self.begin or 0)
        parts = min(_MOST_PARTS, steps // _STEPS_OF_A_PART)
        drawn = [
            ("loss", "step", self.loss.means()),
            (f"{self.unit}/s", "s", self.samples.rates(parts) if parts > 1 else []),
            *((name, "step", curve.means()) for name, curve in sorted(self.own.items())),
        ]
        return [{"name": name, "of": of, "points": points} for name, of, points in drawn if len(points) > 1]
