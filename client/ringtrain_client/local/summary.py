"""Summary that `dtj local` prints at the end: final state, metrics of the model, location of the logs."""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ringtrain_operator.errors import counted
from ringtrain_operator.plan.failure_rules import describe_failure
from ringtrain_operator.status.model import Failure, JobStatus, format_time
from ringtrain_operator.status.progress import parse_progress, progress_summary

from .wording import STATE_STYLES, duration, progress_numbers, shown_state, wrapped_text

LOG_LINES_SHOWN = 20
_TAIL_BYTES = 4096
# Values in a report for which JSON has no numbers.
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_ACCURACY = re.compile(r"((?:[a-z]+ )?accuracy)[ :=]+([01]\.\d+|nan\b)", re.IGNORECASE)


@dataclass(frozen=True)
class LocalRunResults:
    """Results of a local job, read from its files. `stopped`: whether the user stopped it."""

    logs: Path | None
    metrics: dict[str, float]
    stopped: bool = False


def read_local_results(job_logs: Path, attempt: int, stopped: bool = False) -> LocalRunResults:
    """Return the metrics that `attempt` reported; if it reported none, the last accuracy that its ranks printed.

    `stopped`: whether the user stopped the job.
    """
    directory = job_logs / str(attempt)
    if not directory.is_dir():
        return LocalRunResults(None, {}, stopped)
    metrics: dict[str, float] = {}
    for row in _metric_rows(directory / "metrics.jsonl"):
        found = row.get("metrics")
        if isinstance(found, dict):
            metrics.update({str(k): v for k, v in found.items() if isinstance(v, int | float)})
        wrong = row.get("notFinite")
        if isinstance(wrong, dict):
            metrics.update({str(k): float(v) for k, v in wrong.items() if k != "loss" and v in _NOT_FINITE})
    return LocalRunResults(directory, metrics or _printed_accuracy(directory / "job.log"), stopped)


def stopped_status(status: Mapping[str, Any], message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of a job that the user stopped: Failed, with the last progress.

    `message`: the launcher's termination message; empty if the launcher was killed before it wrote one.
    """
    found = ended_status(status, "Stopped", "stopped by the user", format_time(datetime.now(UTC)))
    if (progress := parse_progress(message.get("progress"), None)) is not None:
        found["progress"] = progress.model_dump(by_alias=True, mode="json", exclude_none=True)
        found["progressSummary"] = progress_summary(progress)
    return found


def ended_status(status: Mapping[str, Any], reason: str, message: str, time: str) -> dict[str, Any]:
    """Return the status of a job whose driver ended before the job: Failed since `time`, for `reason`."""
    failed = {"type": "Failed", "status": "True", "reason": reason, "message": message, "lastTransitionTime": time}
    others = [one for one in status.get("conditions") or () if one["type"] not in ("Failed", "Running")]
    return {
        **status,
        "state": "Failed",
        "reason": reason,
        "message": message,
        "conditions": [*others, failed],
        "workers": "-",
        "completionTime": time,
    }


def print_local_summary(console: Console, status: JobStatus, results: LocalRunResults) -> None:
    """Print the summary at the end of a run. Lines break between words only, so that paths can be copied."""
    rows = list(_summary_rows(status, results))
    width = max(len(label) for label, _, _ in rows) + 2
    for label, text, style in rows:
        shown = (wrapped_text(text, console, " " * width), style)
        console.print(Text.assemble((label.ljust(width), "dim"), shown), soft_wrap=True)
    if status.state == "Failed" and status.failure is not None:
        _print_failure(console, status.failure)


def _summary_rows(status: JobStatus, results: LocalRunResults) -> Iterator[tuple[str, str, str]]:
    """Yield label, text and style of each line of the summary."""
    state = shown_state(status.state, status.reason)
    yield "state", state, f"bold {STATE_STYLES.get(state, 'white')}"
    for condition in () if results.stopped else status.conditions:
        if condition.type in ("Succeeded", "Failed") and condition.status == "True":
            # The failure itself is printed below, with the rank's last lines.
            failed = describe_failure(status.failure) if status.failure is not None else ""
            if message := condition.message.removeprefix(failed).removeprefix("; "):
                yield "", message, ""
    newest = status.progress.metrics if status.progress is not None else {}
    for name, value in {**results.metrics, **newest}.items():
        yield name.replace("_", " "), _metric_text(name, value), "bold"
    if status.progress is not None:
        shown = progress_numbers(status.progress.model_dump(by_alias=True, exclude={"metrics", "epoch"}))
        yield "steps", ", ".join([status.progress_summary, *(f"{label} {text}" for label, text in shown)]), ""
    ended = datetime.now(UTC) if results.stopped else status.completion_time
    if status.start_time is not None and ended is not None:
        took = duration((ended - status.start_time).total_seconds())
        yield "job took", f"{took}, {counted(status.attempt, 'attempt')}", ""
    if results.logs is not None:
        yield "logs", str(results.logs), ""
        if (report := results.logs / "report.html").is_file():
            yield "report", str(report), ""


def _print_failure(console: Console, failure: Failure) -> None:
    who = f"rank {failure.rank} ({failure.pod})" if failure.rank is not None else str(failure.pod or "the gang")
    code = f", exit code {failure.exit_code}" if failure.exit_code is not None else ""
    title = f"\nFirst failure of attempt {failure.attempt}: {who}, {failure.reason}{code}"
    console.print(Text(wrapped_text(title, console), style="bold red"), soft_wrap=True)
    if failure.message != f"rank {failure.rank} exited with {failure.exit_code}":
        console.print(Text(wrapped_text(failure.message, console)), soft_wrap=True)
    for line in failure.log_tail[-LOG_LINES_SHOWN:]:
        console.print(Text("  │ " + wrapped_text(line, console, "  │ "), style="dim"), soft_wrap=True)


def _metric_text(name: str, value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return f"{100 * value:.2f} %" if "accuracy" in name and 0 <= value <= 1 else f"{value:.6g}"


def _metric_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON Lines file. A last row that is cut off is skipped."""
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
    """Return the last accuracy printed at the end of the log, for programs that report no metrics."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        found = _ACCURACY.findall(file.read().decode(errors="replace"))
    return {found[-1][0].strip(): float(found[-1][1])} if found else {}
