"""The last words of `dtj local`: how it ended, how good the model is, where the logs are."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..status import Failure, JobStatus
from .telling import STATE_STYLES, duration, numbers

LOG_LINES_SHOWN = 20
_TAIL_BYTES = 4096
_ACCURACY = re.compile(r"((?:[a-z]+ )?accuracy)[ :=]+([01]\.\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Results:
    """What the job's own files say after its end."""

    logs: Path | None
    metrics: dict[str, float]


def read_results(logs_root: Path, namespace: str, job: str, attempt: int) -> Results:
    """What the last attempt reported as metrics, or else printed last as an accuracy."""
    directory = logs_root / namespace / job / str(attempt)
    if not directory.is_dir():
        return Results(None, {})
    metrics: dict[str, float] = {}
    for row in _rows(directory / "metrics.jsonl"):
        found = row.get("metrics")
        if isinstance(found, dict):
            metrics.update({str(k): v for k, v in found.items() if isinstance(v, int | float)})
    return Results(directory, metrics or _printed_accuracy(directory / "job.log"))


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
    if status.progress is not None:
        shown = numbers(status.progress.model_dump(by_alias=True, exclude={"metrics", "epoch"}))
        grid.add_row("steps", ", ".join([status.progress_summary, *(f"{label} {text}" for label, text in shown)]))
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


def _printed_accuracy(path: Path) -> dict[str, float]:
    """The last accuracy among the log's last lines: training code that reports no metrics usually prints one."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        found = _ACCURACY.findall(file.read().decode(errors="replace"))
    return {found[-1][0].strip(): float(found[-1][1])} if found else {}
