"""Summary of one attempt (state, times, steps, speed), which the terminal, lists and pages show."""

import fcntl
import functools
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from ringtrain.shared.formats import duration
from ringtrain_job.launcher.outcome import read_outcome
from ringtrain_job.launcher.throughput import GangThroughput, progress_json, shown_throughput
from ringtrain_job.logs.events import KUBERNETES, read_log_events
from ringtrain_job.logs.fields import past_time, read_json, world_size
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.printed import PrintedReportsChoice
from ringtrain_job.logs.reading import read_log_members
from ringtrain_job.logs.reports import stored_reports

# States without an outcome: a launcher holds the attempt's journal, or none does.
RUNNING: Final = "Running"
KILLED: Final = "Killed"
# Without an outcome, progress is computed from this much of the newest reports: 6,000 of them, read in 0.1 s.
_NEWEST_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class AttemptSummary:
    """Summary of one attempt. `state`: the outcome, `Running`, or `Killed` if the launcher died. `began`, `ended`:
    seconds since the epoch; for a running attempt, `ended` is now. `progress`: as in docs/contract.md."""

    files: AttemptFiles
    state: str
    ranks: int | None
    began: float | None
    ended: float | None
    progress: Mapping[str, Any]
    failure: Mapping[str, Any] | None = None
    warning: str = ""

    @property
    def took_s(self) -> float | None:
        """Duration of the attempt in seconds; None if start or end is unknown."""
        return None if self.began is None or self.ended is None else max(0.0, self.ended - self.began)

    @property
    def loss(self) -> float | str | None:
        """Mean loss of all ranks; a word such as NaN if it is not finite."""
        found = (self.progress.get("notFinite") or {}).get("loss")
        return str(found["value"]) if found else self.progress.get("loss")

    @property
    def shown(self) -> dict[str, str]:
        """Texts by name that lists, tables and pages show; empty where a value is unknown."""
        step, total, rate = (self.progress.get(key) for key in ("step", "totalSteps", "samplesPerSecond"))
        return {
            "state": self.state,
            "ranks": "" if self.ranks is None else str(self.ranks),
            "steps": "" if step is None else f"{step}/{total}" if total else str(step),
            "loss": f"{self.loss:.4g}" if isinstance(self.loss, int | float) else self.loss or "",
            "speed": "" if rate is None else f"{shown_throughput(rate)} {self.progress.get('unit') or 'samples'}/s",
            "took": duration(self.took_s),
        }

    def document(self) -> dict[str, Any]:
        """Return the summary as a JSON object: the values as numbers, and under "shown" the same values as texts."""
        return {
            "attempt": self.files.number,
            "state": self.state,
            "ranks": self.ranks,
            "step": self.progress.get("step"),
            "totalSteps": self.progress.get("totalSteps"),
            "loss": self.loss,
            "speed": self.progress.get("samplesPerSecond"),
            "unit": str(self.progress.get("unit") or "samples"),
            "began": self.began,
            "ended": self.ended,
            "seconds": self.took_s,
            "directory": str(self.files.directory),
            "failure": self.failure,
            "shown": self.shown,
        }


def summarize_attempt(files: AttemptFiles, now: Mapping[str, Any] | None = None) -> AttemptSummary:
    """Return the summary of the attempt in `files`.

    `now`: the attempt's present state from its running launcher, in the form of an outcome. If None, the stored outcome
    is read.
    """
    outcome = now if now is not None else read_outcome(files)
    state = outcome["outcome"] if outcome else RUNNING if _is_journal_locked(files) else KILLED
    progress = (outcome.get("progress") if outcome else _newest_progress(files)) or {}
    ranks = (outcome or {}).get("worldSize") or _announced_ranks(files) or None
    began, ended = _span(files, sees_end=outcome is not None)
    ended = time.time() if now is not None or state == RUNNING else ended
    found = outcome or {}
    return AttemptSummary(files, state, ranks, began, ended, progress, found.get("failure"), found.get("warning") or "")


def attempt_start(files: AttemptFiles) -> float:
    """Return when the attempt began, as its summary does, in seconds since the epoch; 0 if it is unknown."""
    return _span(files, sees_end=read_outcome(files) is not None)[0] or 0.0


def _span(files: AttemptFiles, sees_end: bool) -> tuple[float | None, float | None]:
    """Return the times at which the attempt began and ended, from its events; None for an unknown time.

    `sees_end`: whether the events include the end. If not, the times of the first and last report count too.
    """
    times = [event["time"] for event in read_log_events(files) if event.get("source") != KUBERNETES]
    if not sees_end or not times:
        first = list(islice(stored_reports(files.metrics), 1))
        last = deque(stored_reports(files.metrics, _newest_position(files.metrics)), maxlen=1)
        times += [time for _, report in (*first, *last) if (time := past_time(report["time"])) is not None]
    return min(times, default=None), max(times, default=None)


def _newest_position(path: Path) -> int:
    with suppress(OSError):
        return max(0, path.stat().st_size - _NEWEST_BYTES)
    return 0


def _newest_progress(files: AttemptFiles) -> Mapping[str, Any] | None:
    """Return the progress of an attempt, computed from its newest reports; None without a report."""
    try:
        size = files.metrics.stat().st_size
    except OSError:
        return None
    return _progress_at(files.metrics, size, read_log_members(files))


@functools.lru_cache(maxsize=256)
def _progress_at(path: Path, size: int, members: frozenset[int]) -> Mapping[str, Any] | None:
    """Return the progress from the reports in `path`. `size`: size of the file, for the cache. `members`: slots of the
    last world in an elastic job."""
    choice = PrintedReportsChoice()
    counted: list[tuple[int, dict[str, Any]]] = []
    for rank, report in stored_reports(path, _newest_position(path)):
        if report.get("startedFrom") is None:
            counts, is_first = choice.choose(rank, report)
            counted = [] if is_first else counted
            counted += [(rank, report)] if counts else []
    throughput = GangThroughput(len({rank for rank, _ in counted}))
    for rank, report in counted:
        throughput.add(rank, report)
    if members:
        throughput.keep(members)
    found = throughput.progress()
    return None if found is None else progress_json(found, throughput.uncertainty())


def _announced_ranks(files: AttemptFiles) -> int | None:
    """Return the number of ranks, from the file that the launcher of a local run writes about its HTML page; None if
    unknown."""
    found = read_json(files.page)
    return world_size(found.get("worldSize")) if isinstance(found, dict) else None


def _is_journal_locked(files: AttemptFiles) -> bool:
    """Return whether the attempt's launcher is running: it locks the journal until it ends."""
    with suppress(OSError), files.journal.open("rb") as journal:
        try:
            fcntl.flock(journal, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
