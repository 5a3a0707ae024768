"""The last lines of `dtj local`: how it ended, how good the model is, where the logs are."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ringtrain_operator.plan.failure_rules import describe_failure
from ringtrain_operator.status.model import Failure, JobStatus
from ringtrain_operator.status.situation import counted

from .wording import STATE_STYLES, duration, local_progress_numbers, wrapped_display_text

LOG_LINES_SHOWN = 20
_TAIL_BYTES = 4096
_ACCURACY = re.compile(r"((?:[a-z]+ )?accuracy)[ :=]+([01]\.\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class LocalRunResults:
    """Results of a job, from its files. `stopped`: the user ended it."""

    logs: Path | None
    metrics: dict[str, float]
    stopped: bool = False


def read_local_results(job_logs: Path, attempt: int, stopped: bool = False) -> LocalRunResults:
    """Return the metrics that the last attempt reported, or else the accuracy that it printed last."""
    directory = job_logs / str(attempt)
    if not directory.is_dir():
        return LocalRunResults(None, {}, stopped)
    metrics: dict[str, float] = {}
    for row in _local_summary_rows(directory / "metrics.jsonl"):
        found = row.get("metrics")
        if isinstance(found, dict):
            metrics.update({str(k): v for k, v in found.items() if isinstance(v, int | float)})
    return LocalRunResults(directory, metrics or _printed_accuracy(directory / "job.log"), stopped)


def print_local_summary(console: Console, status: JobStatus, results: LocalRunResults) -> None:
    """Print how the job ended. Lines are broken between words only, so that a path can be copied."""
    rows = list(_rows_of(status, results))
    width = max(len(label) for label, _, _ in rows) + 2
    for label, text, style in rows:
        shown = (wrapped_display_text(text, console, " " * width), style)
        console.print(Text.assemble((label.ljust(width), "dim"), shown), soft_wrap=True)
    if status.state == "Failed" and status.failure is not None:
        _print_failure(console, status.failure)


def _rows_of(status: JobStatus, results: LocalRunResults) -> Iterator[tuple[str, str, str]]:
    """Label, text and style of each line."""
    state = "Stopped" if results.stopped else str(status.state)
    yield "state", state, f"bold {STATE_STYLES.get(state, 'white')}"
    for condition in status.conditions:
        if condition.type in ("Succeeded", "Failed") and condition.status == "True":
            # What failed is told below, with the rank's last lines.
            failed = describe_failure(status.failure) if status.failure is not None else ""
            if message := condition.message.removeprefix(failed).removeprefix("; "):
                yield "", message, ""
    for name, value in results.metrics.items():
        yield name.replace("_", " "), _local_summary_metric(name, value), "bold"
    if status.progress is not None:
        shown = local_progress_numbers(status.progress.model_dump(by_alias=True, exclude={"metrics", "epoch"}))
        yield "steps", ", ".join([status.progress_summary, *(f"{label} {text}" for label, text in shown)]), ""
    ended = datetime.now(UTC) if results.stopped else status.completion_time
    if status.start_time is not None and ended is not None:
        took = duration((ended - status.start_time).total_seconds())
        yield "took", f"{took}, {counted(status.attempt, 'attempt')}", ""
    if results.logs is not None:
        yield "logs", str(results.logs), ""
        if (report := results.logs / "report.html").is_file():
            yield "report", str(report), ""


def _print_failure(console: Console, failure: Failure) -> None:
    who = f"rank {failure.rank} ({failure.pod})" if failure.rank is not None else str(failure.pod or "the gang")
    code = f", exit code {failure.exit_code}" if failure.exit_code is not None else ""
    title = f"\nFirst failure of attempt {failure.attempt}: {who}, {failure.reason}{code}"
    console.print(Text(wrapped_display_text(title, console), style="bold red"), soft_wrap=True)
    if failure.message != f"rank {failure.rank} exited with {failure.exit_code}":
        console.print(Text(wrapped_display_text(failure.message, console)), soft_wrap=True)
    for line in failure.log_tail[-LOG_LINES_SHOWN:]:
        console.print(Text("  │ " + wrapped_display_text(line, console, "  │ "), style="dim"), soft_wrap=True)


def _local_summary_metric(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if "accuracy" in name and 0 <= value <= 1 else f"{value:.6g}"


def _local_summary_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSON Lines file, without a last one that was cut short."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
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
