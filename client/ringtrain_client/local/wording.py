"""Texts shared by all displays: states, rates, durations, progress."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ringtrain_operator.observe.model import LauncherReport
from ringtrain_operator.status.model import JobStatus, Progress
from ringtrain_operator.status.progress import not_finite_text

if TYPE_CHECKING:
    from .driver import JobView

STATE_STYLES = {
    "Pending": "yellow",
    "Queued": "yellow",
    "Waiting": "yellow",
    "Restarting": "yellow",
    "Running": "cyan",
    "Suspended": "magenta",
    "Succeeded": "green",
    "Failed": "red",
    "Rejected": "red",
    "Stopped": "magenta",
    "Killed": "red",
}
# Text beside the state of a job that has no status.
NOT_PROCESSED = "no operator has processed it"
# Reasons of Failed that people see as a state. `ringtrain list` and pages show the same words.
_STATES_BY_REASON = {"Stopped": "Stopped", "DriverLost": "Killed"}


def shown_state(state: str | None, reason: str | None) -> str:
    """Return the word that all lists and displays show for a job's `state` and `reason`; Pending without a state."""
    return _STATES_BY_REASON.get(reason or "", state) if state == "Failed" else state or "Pending"


def job_name(view: JobView) -> str:
    """Return namespace/name."""
    metadata = view.job["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"


def local_state_reason(status: JobStatus) -> str:
    """Return the reason for the job's state as a sentence, or an empty string."""
    for kind in ("Failed", "Succeeded", "Suspended", "Restarting", "Running", "Accepted"):
        condition = status.condition(kind)
        if condition is not None and (condition.status == "True" or kind == "Running") and condition.message:
            return condition.message
    return status.message or ("" if status.state else NOT_PROCESSED)


def progress_numbers(progress: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return epoch, loss, rate and metrics of a progress report, each as a label and a text."""
    if not progress:
        return []
    found = []
    if isinstance(progress.get("epoch"), int):
        found.append(("epoch", str(progress["epoch"])))
    loss = progress.get("loss")
    if isinstance(loss, int | float):
        found.append(("loss", f"{loss:{'.4f' if 0.01 <= abs(loss) < 1e6 or not loss else '.4g'}}"))
    rate = progress.get("samplesPerSecond")
    if isinstance(rate, int | float):
        found.append((f"{progress.get('unit') or 'samples'}/s", f"{rate:{',.0f' if rate >= 10 else '.3g'}}"))
    metrics = progress.get("metrics") or {}
    found += [(name, f"{value:.4g}") for name, value in metrics.items() if isinstance(value, int | float)]
    wrong = progress.get("notFinite")  # a text in a job's status, an object in a launcher's report
    if text := wrong if isinstance(wrong, str) else not_finite_text(wrong):
        name, _, words = text.partition(" ")
        found.append((name, words))
    return found


def progress_of(view: JobView) -> Mapping[str, Any] | None:
    """Return the progress of this attempt from the launcher's report, or else the last progress in the status."""
    report: LauncherReport | None = view.observed.launcher
    if report is not None and report.attempt == view.status.attempt:
        return report.progress
    stored: Progress | None = view.status.progress
    return stored.model_dump(by_alias=True) if stored is not None else None


def ranks_of(view: JobView) -> tuple[Mapping[str, Any], ...]:
    """Return every rank's state; an empty tuple before the launcher reports them."""
    report = view.observed.launcher
    if report is not None and report.attempt == view.status.attempt and report.ranks:
        return report.ranks
    return ()


def wrapped_text(text: str, console: Console, indent: str = "") -> str:
    """Return `text` wrapped to the console's width between words, with `indent` from the second line on.

    A pipe gets every line unchanged.
    """
    if not console.is_terminal:
        return text
    width = max(20, console.width - len(indent))
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    return f"\n{indent}".join(part for line in text.splitlines() for part in wrapper.wrap(line) or [""])


def duration(seconds: float) -> str:
    """Return a duration such as `42 s`, `3 min 20 s` or `1 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
