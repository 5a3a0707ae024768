"""The data of a run's page, read from the files that its launcher wrote."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from ringtrain_job.launcher.summary import RUNNING, AttemptSummary, read_reports, summarize_attempt
from ringtrain_job.logs.about import read_run_description
from ringtrain_job.logs.events import read_log_events
from ringtrain_job.logs.layout import AttemptFiles, replace_whole
from ringtrain_job.logs.printed import PrintedReportsChoice
from ringtrain_job.logs.reading import log_tail_position, read_log_from, read_log_members, read_outcome
from ringtrain_job.logs.samples import read_samples
from ringtrain_page.document import page
from ringtrain_page.log_window import page_log_line
from ringtrain_page.machine import PageMachines
from ringtrain_page.metrics import PageMetrics

LOG_LINES = 5000


def write_report(files: AttemptFiles, metrics: PageMetrics | None = None) -> None:
    """Write the attempt of `files` as one page beside its logs; `metrics`: if they are known already. OSError."""
    replace_whole(files.report, page(summarize_page(files, metrics)))


def summarize_page(files: AttemptFiles, metrics: PageMetrics | None = None) -> dict[str, Any]:
    """Everything about the job of `files`, as JSON: of all its attempts in short, and of this attempt in full.

    `metrics`: of this attempt, if they are known already.
    """
    metrics = metrics or read_page_metrics(files, PrintedReportsChoice())
    members, summary = read_log_members(files), summarize_attempt(files)
    if members:
        metrics.keep(members)
    machines = PageMachines()
    for sample in read_samples(files.machine):
        machines.add(sample)
    return {
        **page_heads(summary),
        "files": files.downloads(),
        "attempts": [*other_attempts(files), summary.document()],
        "curves": metrics.curves(),
        "axes": metrics.axes(),
        "leftOut": metrics.left_out,
        "machine": machines.document(),
        "about": read_run_description(files),
        "ranks": _page_ranks(files, metrics, summary, members),
        "straggler": page_straggler_json(metrics),
        "events": (events := read_log_events(files)),
        "start": page_start_parts(events),
        "log": _page_log(files),
    }


def page_heads(summary: AttemptSummary) -> dict[str, Any]:
    """Return what stands at the top of a page: which attempt it shows, and that in short."""
    job = summary.files.directory.parent
    return {
        "job": job.name,
        "namespace": job.parent.name,
        "attempt": summary.files.number,
        "summary": {**summary.document(), "progress": dict(summary.progress)},
    }


def page_straggler_json(metrics: PageMetrics) -> dict[str, Any] | None:
    """The rank that the others have waited for in the whole attempt, if they lost a good part of their time."""
    found = metrics.times.straggler()
    return None if found is None else vars(found)


def _page_ranks(
    files: AttemptFiles, metrics: PageMetrics, summary: AttemptSummary, members: frozenset[int]
) -> list[dict[str, Any]]:
    """Return every known rank, with its last step, the length of its log, and how it ended if that is known.

    `members`: of the last world of an elastic job; the other ranks wait.
    """
    ended = read_outcome(files) or {}
    failed = (ended.get("failure") or {}).get("rank")
    lines = ended.get("rankLogLines") or []
    wrote = {int(path.stem.removeprefix("rank-")) for path in files.directory.glob("rank-*.log")}
    every = wrote | set(metrics.steps) | set(range(summary.ranks or 0))
    whole = summary.state if summary.state in ("Succeeded", RUNNING) else "Stopped"
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


def other_attempts(files: AttemptFiles) -> list[dict[str, Any]]:
    """Return the attempts of the same job before that of `files`, in short, if their files are there."""
    beside = [AttemptFiles(path) for path in files.directory.parent.glob("*") if path.name.isdecimal()]
    earlier = [other for other in beside if other.number < files.number]
    return [summarize_attempt(other).document() for other in sorted(earlier, key=lambda other: other.number)]


def read_page_metrics(files: AttemptFiles, choice: PrintedReportsChoice) -> PageMetrics:
    """Return the figures of the reports that were stored; `choice` has heard them then."""
    metrics = PageMetrics()
    for report in read_reports(files.metrics):
        with suppress(KeyError, TypeError, ValueError):  # a line that was cut off when the disk was full
            counts, is_first = choice.choose(rank := int(report["rank"]), report)
            metrics = PageMetrics() if is_first else metrics
            if counts:
                metrics.add(rank, report)
    return metrics


def _page_log(files: AttemptFiles) -> dict[str, Any]:
    position, lines, rest = log_tail_position(files.job_log, LOG_LINES), [], b""
    for chunk in read_log_from(files.job_log, position):
        *whole, rest = (rest + chunk).split(b"\n")  # not splitlines: a line may hold other ends of a line
        lines += [page_log_line(line.decode(errors="replace")) for line in whole]
    return {
        "lines": [*lines, page_log_line(rest.decode(errors="replace"))] if rest else lines,
        "before": position,
    }


# The part of a start that each event ends, in their order. `Pulled` is of the pod that started last.
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


def page_start_parts(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Each part of the start that is known, with its seconds; empty before the ranks were started.

    `events`: of one attempt. A start begins when the job was asked for, where Kubernetes tells, else with the
    launcher.
    """
    first: dict[str, float] = {}
    for event in events:
        first.setdefault(str(event["kind"]), float(event["time"]))
    formed = first.get("Running")
    if formed is None:
        return []
    if first.get("Joined", formed) > formed:  # an elastic job begins with fewer than all
        del first["Joined"]
    before = first.get("Queued", first.get("Created", first.get("Launcher", formed)))
    found = []
    for kind, part in _PARTS.items():
        time = first.get(kind)
        if time is None or (kind == "Created" and "Queued" not in first):
            continue
        found.append((part, max(0.0, time - before)))  # clocks of two machines
        before = max(before, time)
    return found
