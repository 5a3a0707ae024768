"""Observer that prints the merged log, progress lines, and the total speed at the end."""

import logging
import math
import sys
from typing import Any

from ringtrain_job.control.model import Verdict
from ringtrain_job.launcher.console import Console, ConsoleProgressBar
from ringtrain_job.launcher.observers import AttemptObserver
from ringtrain_job.launcher.registry import Attempt
from ringtrain_job.launcher.status import StatusSnapshot
from ringtrain_job.launcher.throughput import throughput_step_line, throughput_total_line

log = logging.getLogger(__name__)


class ConsoleObserver(AttemptObserver):
    """Observer that prints ranks' lines and the progress to stdout."""

    order = 10

    def __init__(self, status: StatusSnapshot, console: Console) -> None:
        self._status, self._console = status, console
        self._printed_at, self._step, self._lines = -math.inf, -1, 0

    def wrote(self, lines: bytes) -> None:
        self._console.show(lines)

    def reported(self, rank: int, report: dict[str, Any]) -> None:
        if report.get("startedFrom") is not None:
            self._console.show(f"training goes on from {self._status.start_text()}\n".encode())
            return
        if self._status.config.quiet:
            return
        with self._status.reports as reports:
            step, last = reports.complete_step, reports.last_report_time or 0.0
            is_soon = last - self._printed_at < self._console.progress_gap_s(self._lines)
            if step == self._step or (is_soon and step != report.get("totalSteps")):
                return
            progress = reports.progress()
            if progress is None:
                return
            self._printed_at, self._step, self._lines = last, step, self._lines + 1
            speed = reports.speed()
            bar = ConsoleProgressBar(progress, speed, reports.left_s(progress))
        # A pipe already has the ranks' own lines with the same content.
        line = "" if progress.printed else f"{throughput_step_line(progress, speed)}\n"
        self._console.show_progress(bar, line)

    def ended(self, verdict: Verdict | None) -> None:
        """Print the total speed at the end, unless `ringtrain run` prints it in its summary."""
        if verdict is None:
            return
        self._console.show_progress(None, "")
        if self._status.config.ports_held:
            return
        with self._status.reports as reports:
            progress, total = reports.progress(), reports.total()
        if progress is None or not total or not progress.samples_per_s or self._status.config.quiet:
            return
        if not progress.printed:  # otherwise the ranks' own lines contain it
            self._console.show(throughput_total_line(progress.unit, total).encode() + b"\n")

    def close(self) -> None:
        if message := self._console.close(5.0):
            log.warning(message)


def open_console(attempt: Attempt) -> ConsoleObserver | None:
    """Return the observer that prints to stdout; None if the attempt has already ended."""
    if attempt.is_over:
        return None
    config = attempt.config
    console = Console(sys.stdout.fileno(), person=not config.node, progress_every_s=config.progress_every_s)
    return ConsoleObserver(attempt.status, console)
