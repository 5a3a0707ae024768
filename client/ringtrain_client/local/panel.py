"""Panel that `dtj local` and `dtj watch` redraw in place: a progress bar, numbers and every rank's state."""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .driver import JobView, LocalDisplay
from .past_runs import PastLocalRunTail
from .plain import PlainLocalDisplay
from .wording import (
    STATE_STYLES,
    duration,
    job_name,
    local_state_reason,
    progress_numbers,
    progress_of,
    ranks_of,
    shown_state,
)


@contextlib.contextmanager
def job_display(plain: bool, tail: PastLocalRunTail | None = None) -> Iterator[LocalDisplay]:
    """Yield a display for a job: a panel on a terminal; lines if `plain` or if stdout is not a terminal.

    `tail`: reader of the ranks' output, which is printed, too.
    """
    console = Console()
    if plain or not console.is_terminal:
        yield PlainLocalDisplay(sys.stdout, tail)
        return
    # Transient: the summary takes the panel's place at the end.
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        yield PanelDisplay(live, tail)


# More ranks than fit on a screen are counted by state instead.
RANKS_SHOWN = 32


class PanelDisplay:
    """Display of a job in `live`, the lower part of the terminal. `tail`: output of ranks to print above it."""

    def __init__(self, live: Live, tail: PastLocalRunTail | None) -> None:
        self._live = live
        self._tail = tail
        self._pace = StepPace()

    def show(self, view: JobView) -> None:
        """Redraw the panel. Events are printed above it and stay in the scroll-back."""
        for event in view.events:
            if event.type == "Warning" and not view.status.finished:  # the summary shows the end
                self._live.console.print(Text(f"{event.reason}: {event.message}", style="yellow"))
        for line in self._tail.lines(view.status.attempt) if self._tail is not None else ():
            self._live.console.print(Text(line), soft_wrap=True)
        # Leave space for the echoed ^C: it would wrap, and the panel would be cleared one line off.
        now = datetime.now(UTC)
        panel = render_live_display(view, now, self._pace.seconds_left(view, now))
        self._live.update(Constrain(panel, self._live.console.width - len("^C")))


class StepPace:
    """Estimate of a job's remaining time from the mean duration of the steps observed in this attempt."""

    def __init__(self) -> None:
        self._attempt = 0
        self._first = self._newest = (datetime.min.replace(tzinfo=UTC), 0)

    def seconds_left(self, view: JobView, now: datetime) -> float | None:
        """Return the estimated time until the last step; None if it is unknown."""
        progress = progress_of(view) or {}
        step, total = progress.get("step"), progress.get("totalSteps")
        if step is None or not total or view.status.state != "Running":
            return None
        if view.status.attempt != self._attempt or step < self._newest[1]:
            self._attempt, self._first, self._newest = view.status.attempt, (now, step), (now, step)
        if step > self._newest[1]:
            self._newest = now, step
        (began, first), (at, newest) = self._first, self._newest
        if newest == first or step >= total:
            return None
        return float((total - newest) * (at - began).total_seconds() / (newest - first))


def render_live_display(view: JobView, now: datetime, seconds_left: float | None = None) -> RenderableType:
    """Return the panel. `seconds_left`: estimated time until the last step, if it is known."""
    parts = (
        _live_message(view),
        _live_progress_bar(view, seconds_left),
        _live_progress_numbers(view),
        _live_ranks(view),
    )
    body = [part for part in parts if part is not None]
    state = shown_state(view.status.state, view.status.reason)
    title = Text.assemble((job_name(view), "bold"), "  ", (state, f"bold {STATE_STYLES.get(state, 'white')}"))
    return Panel(
        Group(*body),
        title=title,
        title_align="left",
        subtitle=_live_pod_counts(view, now),
        subtitle_align="left",
        padding=(0, 1),
    )


def _live_message(view: JobView) -> RenderableType | None:
    if view.status.state in ("Running", "Succeeded"):
        return None
    return Text(local_state_reason(view.status), style="dim", overflow="fold")


def _live_pod_counts(view: JobView, now: datetime) -> Text:
    status = view.status
    started = status.start_time
    parts = [f"attempt {status.attempt}", f"restarts {status.restarts}", f"workers {status.workers}"]
    if started is not None:
        parts.append(duration(((status.completion_time or now) - started).total_seconds()))
    return Text(" · ".join(parts), style="dim")


def _live_progress_bar(view: JobView, seconds_left: float | None) -> RenderableType | None:
    progress = progress_of(view)
    if not progress or progress.get("step") is None:
        return None
    step, total = progress["step"], progress.get("totalSteps")
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    if total:
        bar = ProgressBar(total=total, completed=step, complete_style="cyan", finished_style="green")
        left = "" if seconds_left is None else f"  {duration(seconds_left)} left"
        grid.add_row(bar, f"{step}/{total}  {100 * step // total:3d}%{left}")
    else:
        grid.add_row(ProgressBar(total=None, pulse=True), f"step {step}")
    return grid


def _live_progress_numbers(view: JobView) -> RenderableType | None:
    found = progress_numbers(progress_of(view))
    if not found:
        return None
    return Text("   ").join(Text.assemble((f"{label} ", "dim"), (text, "bold")) for label, text in found)


def _live_ranks(view: JobView) -> RenderableType | None:
    ranks = ranks_of(view)
    if not ranks:
        return None
    if len(ranks) <= RANKS_SHOWN:
        return _live_ranks_by_worker(view, ranks)
    states = [str(rank.get("state")) for rank in ranks]
    return Text("   ").join(
        Text.assemble((f"{states.count(state)} ", "bold"), (state, STATE_STYLES.get(state, "white")))
        for state in sorted(set(states))
    )


def _live_ranks_by_worker(view: JobView, ranks: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a line for each worker with its ranks."""
    report = view.observed.launcher
    agents = len(report.workers) if report is not None else 0
    slots = max(1, len(ranks) // max(1, agents))
    grid = Table.grid(padding=(0, 3))
    for first in range(0, len(ranks), slots):
        name = f"{view.job['metadata']['name']}-worker-{first // slots}"
        shown = Columns([_live_rank(rank) for rank in ranks[first : first + slots]], padding=(0, 3))
        grid.add_row(Text(name, style="dim", no_wrap=True), shown)
    return grid


def _live_rank(rank: Mapping[str, Any]) -> Text:
    state = str(rank.get("state"))
    detail = f" step {rank['step']}" if rank.get("step") is not None and state == "Running" else ""
    code = f" exit {rank['exitCode']}" if rank.get("exitCode") else ""
    style = STATE_STYLES.get(state, "white")
    return Text.assemble(("● ", style), f"rank {rank.get('rank')} ", (state, style), (f"{detail}{code}", "dim"))
