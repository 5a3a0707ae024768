"""What the launcher makes of reports while they arrive: progress, throughput, and lines that people read."""

import math
from typing import Any

from ringtrain_job.launcher.console import ConsoleProgressBar, LauncherConsole
from ringtrain_job.launcher.status import LauncherStatusSnapshot
from ringtrain_job.launcher.throughput import throughput_step_line, throughput_total_line
from ringtrain_job.logs.samples import MachineSample


def follow_reports(snapshot: LauncherStatusSnapshot, console: LauncherConsole) -> None:
    """Feed report lines into the throughput, and print progress as often as the console wants it."""
    printed_at = -math.inf

    def on_report(rank: int, report: dict[str, Any]) -> None:
        nonlocal printed_at
        if _notes_start(snapshot, report):
            console.show(f"training goes on from {snapshot.start_text()}\n".encode())
            return
        closed = snapshot.hear(rank, report)
        if not closed or snapshot.config.quiet:
            return
        with snapshot.reports as reports:
            last = reports.last_report_time or 0.0
            if last - printed_at < console.progress_every_s and closed[-1] != report.get("totalSteps"):
                return
            printed_at, progress = last, reports.progress()
            if progress is not None:
                speed = reports.speed()
                bar = ConsoleProgressBar(progress, speed, snapshot.metrics.left_s(progress.step))
                # Who reads a pipe has the ranks' own lines, which say the same.
                console.show_progress(bar, "" if progress.printed else f"{throughput_step_line(progress, speed)}\n")

    def on_machine(sample: MachineSample) -> None:
        if sample.worker < snapshot.config.workers:
            with snapshot.reports:
                snapshot.machines.add(sample)

    for sample in snapshot.store.samples():
        on_machine(sample)
    for rank, report in snapshot.store.rows():
        if not _notes_start(snapshot, report):
            snapshot.hear(rank, report)
    snapshot.first_progress = snapshot.metrics.first
    snapshot.store.on_merged = console.show
    snapshot.store.on_report = on_report
    snapshot.store.on_machine = on_machine
    if snapshot.about is not None:
        snapshot.store.on_about = snapshot.about.add


def _notes_start(snapshot: LauncherStatusSnapshot, report: dict[str, Any]) -> bool:
    """Whether `report` is no step but says what training went on from. What was said first counts."""
    path = report.get("startedFrom")
    if path is None:
        return False
    snapshot.started_from = snapshot.started_from or (int(report["step"]), path)
    return True


def say_total(snapshot: LauncherStatusSnapshot, console: LauncherConsole) -> None:
    """Print the last line of a benchmark, if anything was measured."""
    with snapshot.reports as reports:
        progress, total = reports.progress(), reports.total()
    if snapshot.config.quiet or (progress is not None and progress.printed):
        return  # whoever looks has seen what was printed
    if progress and total and progress.samples_per_s:
        console.show(throughput_total_line(progress.unit, total).encode() + b"\n")
