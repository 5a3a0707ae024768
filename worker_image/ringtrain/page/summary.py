"""What the page of a run shows, read from the files that its launcher has kept."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringtrain.logs.layout import AttemptFiles
from ringtrain.logs.reading import read_from, read_outcome, tail_position
from ringtrain.page.curves import Curve

LOG_LINES = 5000
# Parts of a run for which a speed is drawn: no more, and none of fewer steps, which would show how steps fall.
_MOST_PARTS, _STEPS_OF_A_PART = 60, 4


@dataclass
class _Metrics:
    """What `metrics.jsonl` of one attempt says."""

    loss: Curve = field(default_factory=Curve)
    samples: Curve = field(default_factory=lambda: Curve(width=0.01))
    own: dict[str, Curve] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    begin: int | None = None
    first: float | None = None
    last: float | None = None
    unit: str = "samples"
    total_steps: int | None = None

    def add(self, report: dict[str, Any]) -> None:
        step, time, rank = int(report["step"]), float(report["time"]), int(report["rank"])
        if report.get("startedFrom") is not None:
            return
        self.first = time if self.first is None else min(self.first, time)
        self.last = time if self.last is None else max(self.last, time)
        if rank in self.steps:  # how long a rank's first step took is not known
            self.samples.add(max(0.0, time - self.first), report.get("samples"))
        self.steps[rank] = max(step, self.steps.get(rank, step))
        self.begin = step if self.begin is None else min(self.begin, step)
        self.unit = report.get("unit") or self.unit
        self.total_steps = report.get("totalSteps") or self.total_steps
        self.loss.add(step, report.get("loss"))
        for name, value in (report.get("metrics") or {}).items():
            self.own.setdefault(name, Curve()).add(step, value)


def summarize(files: AttemptFiles) -> dict[str, Any]:
    """Everything about the job of `files`, as JSON: of all its attempts in short, and of this attempt in full."""
    metrics = _read_metrics(files)
    outcome = read_outcome(files)
    return {
        "job": files.directory.parent.name,
        "namespace": files.directory.parent.parent.name,
        "directory": str(files.directory),
        "attempt": int(files.directory.name),
        "attempts": [_attempt(other) for other in _attempts(files)],
        "outcome": outcome,
        "began": metrics.first,
        "ended": metrics.last,
        "unit": metrics.unit,
        "step": min(metrics.steps.values(), default=None),
        "totalSteps": metrics.total_steps,
        "curves": _curves(metrics),
        "ranks": _ranks(files, metrics, outcome),
        "log": _log(files),
    }


def _curves(metrics: _Metrics) -> list[dict[str, Any]]:
    steps = max(metrics.steps.values(), default=0) - (metrics.begin or 0)
    parts = min(_MOST_PARTS, steps // _STEPS_OF_A_PART)
    drawn = [
        ("loss", "step", metrics.loss.means()),
        (f"{metrics.unit}/s", "s", metrics.samples.rates(parts) if parts > 1 else []),
        *((name, "step", curve.means()) for name, curve in sorted(metrics.own.items())),
    ]
    return [{"name": name, "of": of, "points": points} for name, of, points in drawn if len(points) > 1]


def _ranks(files: AttemptFiles, metrics: _Metrics, outcome: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Every rank that is known, with its last step, how its log is long, and how it ended where that is known."""
    ended = outcome or {}
    failed = (ended.get("failure") or {}).get("rank")
    lines = ended.get("rankLogLines") or []
    wrote = {int(path.stem.removeprefix("rank-")) for path in files.directory.glob("rank-*.log")}
    every = wrote | set(metrics.steps) | set(range(int(ended.get("worldSize") or 0)))
    whole = "Succeeded" if ended.get("outcome") == "Succeeded" else "Stopped" if ended else "Running"
    return [
        {
            "rank": rank,
            "state": "Failed" if rank == failed else whole,
            "step": metrics.steps.get(rank),
            "lines": lines[rank] if rank < len(lines) else None,
        }
        for rank in sorted(every)
    ]


def _attempts(files: AttemptFiles) -> Iterator[AttemptFiles]:
    folders = (path for path in files.directory.parent.glob("*") if path.name.isdecimal())
    return map(AttemptFiles, sorted(folders, key=lambda path: int(path.name)))


def _attempt(files: AttemptFiles) -> dict[str, Any]:
    first, last = _ends(files.metrics)
    return {
        "attempt": int(files.directory.name),
        "outcome": read_outcome(files),
        "began": first.get("time"),
        "ended": last.get("time"),
        "step": last.get("step"),
    }


def _ends(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first and the last report of a file; empty where there is none."""
    first = next(iter(_reports(path, 0)), {})
    last = {}
    for report in _reports(path, tail_position(path, 1)):
        last = report
    return first, last


def _read_metrics(files: AttemptFiles) -> _Metrics:
    metrics = _Metrics()
    for report in _reports(files.metrics, 0):
        with suppress(KeyError, TypeError, ValueError):  # a line that was cut off when the disk was full
            metrics.add(report)
    return metrics


def _reports(path: Path, position: int) -> Iterator[dict[str, Any]]:
    rest = b""
    for chunk in read_from(path, position):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            with suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    yield found


def _log(files: AttemptFiles) -> dict[str, Any]:
    position = tail_position(files.job_log, LOG_LINES)
    text = b"".join(read_from(files.job_log, position)).decode(errors="replace")
    return {"lines": text.splitlines(), "before": position}
