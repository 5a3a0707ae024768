"""The last words of `dtj local`: how it ended, how good the model is, where the logs are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..status import Failure, JobStatus
from .telling import STATE_STYLES, duration

LOG_LINES_SHOWN = 20


@dataclass(frozen=True)
class Results:
    """What the job's own files say after its end."""

    logs: Path | None
    metrics: dict[str, float]
    last_line: str


def read_results(logs_root: Path, namespace: str, job: str, attempt: int) -> Results:
    """The last attempt's metrics and last line, as far as there are any."""
    directory = logs_root / namespace / job / str(attempt)
    if not directory.is_dir():
        return Results(None, {}, "")
    metrics: dict[str, float] = {}
    for row in _rows(directory / "metrics.jsonl"):
        found = row.get("metrics")
        if isinstance(found, dict):
            metrics.update({str(k): v for k, v in found.items() if isinstance(v, int | float)})
    return Results(directory, metrics, _last_line(directory / "job.log"))


def print_summary(console: Console, status: JobStatus, results: Results) -> None:
    """Print how the job ended."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    state = str(status.state)
    grid.add_row("state", Text(state, style=f"bold {STATE_STYLES.get(state, 'white')}"))
    for condition in status.conditions:
        if condition.type in ("Succeeded", "Failed") and condition.status == "True":
            grid.add_row("", Text(condition.message))
    for name, value in results.metrics.items():
        grid.add_row(name.replace("_", " "), Text(_metric(name, value), style="bold"))
    if not results.metrics and results.last_line and state == "Succeeded":
        grid.add_row("last line", Text(results.last_line))
    if status.start_time is not None and status.completion_time is not None:
        took = duration((status.completion_time - status.start_time).total_seconds())
        grid.add_row("took", f"{took}, {status.attempt} attempt{'s' if status.attempt > 1 else ''}")
    if results.logs is not None:
        grid.add_row("logs", Text(str(results.logs)))
    console.print(grid)
    if state == "Failed" and status.failure is not None:
        _print_failure(console, status.failure)


def _print_failure(console: Console, failure: Failure) -> None:
    who = f"rank {failure.rank} ({failure.pod})" if failure.rank is not None else str(failure.pod or "the gang")
    code = f", exit code {failure.exit_code}" if failure.exit_code is not None else ""
    console.print(
        Text(f"\nFirst failure of attempt {failure.attempt}: {who}, {failure.reason}{code}", style="bold red")
    )
    if failure.message:
        console.print(Text(failure.message))
    for line in failure.log_tail[-LOG_LINES_SHOWN:]:
        console.print(Text(f"  │ {line}", style="dim"))


def _metric(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if "accuracy" in name and 0 <= value <= 1 else f"{value:.6g}"


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSON Lines file, without a last one that was cut short."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield row


def _last_line(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 4096))
        lines = file.read().decode(errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "")
