"""Data of a run's page, read from the log files that its launcher has written."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ringtrain_job.launcher.outcome import read_outcome
from ringtrain_job.launcher.summary import RUNNING, AttemptSummary, summarize_attempt
from ringtrain_job.logs.about import read_run_description
from ringtrain_job.logs.events import read_log_events
from ringtrain_job.logs.layout import AttemptFiles, replace_whole
from ringtrain_job.logs.printed import PrintedReportsChoice
from ringtrain_job.logs.reading import log_tail_position, read_log_from, read_log_members
from ringtrain_job.logs.reports import stored_reports
from ringtrain_job.logs.samples import read_samples
from ringtrain_page.document import page
from ringtrain_page.log_window import shortened_line
from ringtrain_page.machine import PageMachines
from ringtrain_page.metrics import PageMetrics

LOG_LINES = 5000


def write_report(files: AttemptFiles, metrics: PageMetrics | None = None) -> None:
    """Write the page of the attempt in `files` as report.html next to its logs. Raises OSError if it cannot be written.

    `metrics`: metrics of the attempt, if they were already read.
    """
    replace_whole(files.report, page(summarize_page(files, metrics)))


def summarize_page(files: AttemptFiles, metrics: PageMetrics | None = None) -> dict[str, Any]:
    """Return the data of an attempt's page: the attempt in `files` in full, earlier attempts as summaries.

    `metrics`: metrics of the attempt, if they were already read.
    """
    metrics = metrics or read_page_metrics(files, PrintedReportsChoice())
    members, summary = read_log_members(files), summarize_attempt(files)
    if members:
        metrics.keep(members)
    machines = PageMachines()
    for sample in read_samples(files.machine):
        machines.add(sample)
    return {
        **page_header(summary),
        "files": files.downloads(),
        "attempts": [*earlier_attempt_summaries(files), summary.document()],
        "curves": metrics.curves(),
        "axes": metrics.axes(),
        "leftOut": metrics.left_out,
        "machine": machines.document(),
        "about": read_run_description(files),
        "ranks": _page_ranks(files, metrics, summary, members),
        "straggler": straggler_document(metrics),
        "events": (events := read_log_events(files)),
        "start": start_part_durations(events),
        "log": _page_log(files),
    }


def page_header(summary: AttemptSummary) -> dict[str, Any]:
    """Return the part of a page's data that names job, namespace and attempt, with a summary of the attempt."""
    job = summary.files.directory.parent
    return {
        "job": job.name,
        "namespace": job.parent.name,
        "attempt": summary.files.number,
        "summary": {**summary.document(), "progress": dict(summary.progress)},
    }


def straggler_document(metrics: PageMetrics) -> dict[str, Any] | None:
    """Return the rank for which the others waited longest, with its figures; None if little time was lost."""
    found = metrics.times.straggler()
    return None if found is None else vars(found)


def _page_ranks(
    files: AttemptFiles, metrics: PageMetrics, summary: AttemptSummary, members: frozenset[int]
) -> list[dict[str, Any]]:
    """Return an object for each known rank: last step, times, number of log lines, and state.

    `members`: members of the last world of an elastic job; the other ranks wait.
    """
    ended = read_outcome(files) or {}
    failed = (ended.get("failure") or {}).get("rank")
    lines = ended.get("rankLogLines") or []
    every = {*files.rank_logs(), *metrics.steps, *range(summary.ranks or 0)}
    whole = summary.state if summary.state in ("Succeeded", RUNNING) else "Ended"
    return [
        {
            "rank": rank,
            "state": "Failed" if rank == failed else "Waiting" if members and rank not in members else whole,
            "step": metrics.steps.get(rank),
            "times": metrics.times.of(rank),
            "lines": lines[rank] if rank < len(lines) else None,
        }
        for rank in sorted(every)
    ]


def earlier_attempt_summaries(files: AttemptFiles) -> list[dict[str, Any]]:
    """Return summaries of the job's earlier attempts whose log folders still exist."""
    attempts = [AttemptFiles(path) for path in files.directory.parent.glob("*") if path.name.isdecimal()]
    earlier = [other for other in attempts if other.number < files.number]
    return [summarize_attempt(other).document() for other in sorted(earlier, key=lambda other: other.number)]


def read_page_metrics(files: AttemptFiles, choice: PrintedReportsChoice) -> PageMetrics:
    """Return the curves of the reports stored in `files`. `choice` selects reports and is updated with them."""
    metrics = PageMetrics()
    for rank, report in stored_reports(files.metrics):
        counts, is_first = choice.choose(rank, report)
        metrics = PageMetrics() if is_first else metrics
        if counts:
            metrics.add(rank, report)
    return metrics


def _page_log(files: AttemptFiles) -> dict[str, Any]:
    position, lines, rest = log_tail_position(files.job_log, LOG_LINES), [], b""
    for chunk in read_log_from(files.job_log, position):
        *whole, rest = (rest + chunk).split(b"\n")  # not splitlines: a line may contain other line separators
        lines += [shortened_line(line.decode(errors="replace")) for line in whole]
    return {
        "lines": [*lines, shortened_line(rest.decode(errors="replace"))] if rest else lines,
        "before": position,
    }


# The part of a start that ends with each event, in order. `Pulled` is of the pod that started last.
_PARTS: Final = {
    "Created": "queued",
    "Scheduled": "scheduled",
    "Pulling": "prepared",
    "Pulled": "pulled",
    "Started": "started",
    "Joined": "joined",
    "Running": "formed",
    "Step": "first step",
}


def start_part_durations(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Return the known phases of a job's start with their seconds; empty before all ranks were running.

    `events`: events of one attempt. The start begins when the job was created, if Kubernetes events show
    it, otherwise when the launcher starts.
    """
    first: dict[str, float] = {}
    for event in events:
        first.setdefault(event["kind"], event["time"])
    formed = first.get("Running")
    if formed is None:
        return []
    if first.get("Joined", formed) > formed:  # an elastic job may start with fewer workers
        del first["Joined"]
    before = first.get("Queued", first.get("Created", first.get("Launcher", formed)))
    found = []
    for kind, part in _PARTS.items():
        time = first.get(kind)
        if time is None or (kind == "Created" and "Queued" not in first):
            continue
        found.append((part, max(0.0, time - before)))  # negative if clocks of two machines differ
        before = max(before, time)
    return found
