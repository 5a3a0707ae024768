"""What the launcher makes of reports while they arrive: progress, throughput, and lines that people read."""

from typing import Any

from ringtrain_job.launcher.console import Console
from ringtrain_job.launcher.status import Snapshot
from ringtrain_job.launcher.throughput import step_line, total_line
from ringtrain_job.logs.samples import Sample

_STEP_LINE_EVERY_S = 1.0


def follow_reports(snapshot: Snapshot, console: Console) -> None:
    """Feed report lines into the throughput, and print progress at most once a second of report time."""
    printed_at = -_STEP_LINE_EVERY_S

    def on_report(rank: int, report: dict[str, Any]) -> None:
        nonlocal printed_at
        if _notes_start(snapshot, report):
            console.show(f"training goes on from {snapshot.start_text()}\n".encode())
            return
        closed = snapshot.hear(rank, report)
        if not closed:
            return
        with snapshot.reports as reports:
            last = reports.last_report_time or 0.0
            if last - printed_at < _STEP_LINE_EVERY_S and closed[-1] != report.get("totalSteps"):
                return
            printed_at, progress = last, reports.progress()
            if progress is not None:
                line = step_line(progress, reports.speed()).encode() + b"\n"
                console.show_progress(line, is_known="printed" in report)

    def on_machine(sample: Sample) -> None:
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


def _notes_start(snapshot: Snapshot, report: dict[str, Any]) -> bool:
    """Whether `report` is no step but says what training went on from. What was said first counts."""
    path = report.get("startedFrom")
    if path is None:
        return False
    snapshot.started_from = snapshot.started_from or (int(report["step"]), path)
    return True


def say_total(snapshot: Snapshot, console: Console) -> None:
    """Print the last line of a benchmark, if anything was measured."""
    with snapshot.reports as reports:
        progress, total = reports.progress(), reports.total()
    if progress is not None and progress.printed:
        return  # whoever looks has seen it
    if progress and total and progress.samples_per_s:
        console.show(total_line(progress.unit, total).encode() + b"\n")
