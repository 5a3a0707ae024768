"""Presentation of jobs: lines for a terminal, tables for a notebook, and displays that follow a running job."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ringtrain_operator.status.model import Failure, JobStatus, parse_status

from ..local.wording import progress_numbers, shown_state
from .session import Json

_RED = "#cf222e"
_COLOURS = {"Succeeded": "#1a7f37", "Failed": _RED, "Killed": _RED, "Rejected": _RED, "Running": "#0969da"}


@dataclass(frozen=True)
class Why:
    """Causes of a job's state, the job's own conditions first, and the failure of the rank that failed first."""

    lines: tuple[str, ...]
    failure: Failure | None = None

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass(frozen=True, repr=False)
class Snapshot:
    """State of a job at one moment."""

    name: str
    namespace: str
    status: JobStatus

    @property
    def state(self) -> str:
        """State of the job in one word; Pending if the operator has not set one yet."""
        return str(self.status.state or "Pending")

    def cells(self) -> tuple[str, ...]:
        """Return the job's row of a table: name, state, workers, restarts, progress, and reported numbers."""
        progress = self.status.progress
        reported = progress_numbers(progress.model_dump(by_alias=True)) if progress is not None else []
        return (
            self.name,
            shown_state(self.status.state, self.status.reason),
            self.status.workers or "-",
            str(self.status.restarts),
            self.status.progress_summary or "-",
            ", ".join(f"{label} {text}" for label, text in reported) or "-",
        )

    def __str__(self) -> str:
        name, state, workers, restarts, progress, reported = self.cells()
        parts = [f"{self.namespace}/{name} {state}"]
        parts += [f"workers {workers}"] if workers != "-" else []
        parts += [f"restarts {restarts}"] if restarts != "0" else []
        parts += [part for part in (progress, reported) if part != "-"]
        return ", ".join(parts)

    def __repr__(self) -> str:
        return f"<{self}>"

    def _repr_html_(self) -> str:
        return snapshot_table([self])


def snapshot_of(job: Json) -> Snapshot:
    """Return the snapshot of a job."""
    meta = job["metadata"]
    return Snapshot(meta["name"], meta.get("namespace") or "default", parse_status(job.get("status")))


def snapshot_table(snapshots: Iterable[Snapshot]) -> str:
    """Return an HTML table with a row for each job."""
    head = "".join(f"<th>{name}</th>" for name in ("name", "state", "workers", "restarts", "progress", "reported"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_snapshot_row, snapshots))}</tbody></table>"


def _snapshot_row(snapshot: Snapshot) -> str:
    """Return the HTML row of one job."""
    name, state, workers, restarts, summary, reported = map(html.escape, snapshot.cells())
    colour = _COLOURS.get(state, "inherit")
    progress = snapshot.status.progress
    bar = ""
    if progress is not None and progress.total_steps:
        bar = f'<progress value="{progress.step}" max="{progress.total_steps}"></progress> '
    shown = f'<b style="color:{colour}">{state}</b>'
    cells = (name, shown, workers, restarts, bar + summary, reported)
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


class StatusDisplay(Protocol):
    """Display of a job's progress."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the present state."""


class TextDisplay:
    """Display that prints a line for each change."""

    def __init__(self) -> None:
        self._printed = ""

    def show(self, snapshot: Snapshot) -> None:
        """Print a line about `snapshot`, unless it is equal to the last printed line."""
        line = str(snapshot)
        if line != self._printed:
            self._printed = line
            print(line, file=sys.stderr, flush=True)


class NotebookDisplay:
    """Display of a job as a table that is updated in the notebook cell that created it."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, snapshot: Snapshot) -> None:
        """Show the table, or update it."""
        if self._handle is None:
            self._handle = self._display(snapshot, display_id=True)
        else:
            self._handle.update(snapshot)


def default_display() -> StatusDisplay:
    """Return a display of a job's progress: a table in a notebook, otherwise lines on stderr."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return TextDisplay()
    from IPython.display import display

    return NotebookDisplay(display)


def snapshot_text_table(rows: Sequence[Snapshot]) -> str:
    """Return a text table with a line for each job."""
    head = ("NAME", "STATE", "WORKERS", "RESTARTS", "PROGRESS", "REPORTED")
    lines = [head, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
