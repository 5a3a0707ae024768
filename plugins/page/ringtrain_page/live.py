"""Data of a running job's page, read from the memory of its launcher."""

import json
import threading
import time
from typing import Any, Protocol

from ringtrain.shared.formats import clean_json
from ringtrain_job.control.model import RankPhase
from ringtrain_job.control.termination import failure_json
from ringtrain_job.launcher.status import StatusSnapshot
from ringtrain_job.launcher.summary import summarize_attempt
from ringtrain_job.logs.events import read_log_events
from ringtrain_page.machine import PageMachines
from ringtrain_page.metrics import PageMetrics
from ringtrain_page.summary import earlier_attempt_summaries, page_header, start_part_durations

# States of a rank on the page, by the launcher's phase.
_STATES = {RankPhase.SUCCEEDED: "Succeeded", RankPhase.FAILED: "Failed", RankPhase.RUNNING: "Running"}


class PageFigures(Protocol):
    """Curves and machine samples that `PageObserver` collects. Acquire `lock` to read them."""

    lock: threading.Lock
    metrics: PageMetrics
    machines: PageMachines


class LivePage:
    """Data of a running attempt's page, in the format of `summarize_page`. Several threads may call its methods."""

    def __init__(self, snapshot: StatusSnapshot, figures: PageFigures) -> None:
        self._snapshot, self._figures = snapshot, figures
        self._others = earlier_attempt_summaries(snapshot.store.files)

    def document(self) -> dict[str, Any]:
        """Return the data of the page as it is now, without log lines. Numbers may be NaN or infinite."""
        snapshot = self._snapshot
        verdict, files = snapshot.verdict, snapshot.store.files
        with self._figures.lock, snapshot.reports as reports:
            progress, metrics = reports.progress(), self._figures.metrics
            curves, axes, left_out = metrics.curves(), metrics.axes(), metrics.left_out
            states = snapshot.gang.view().ranks
            running = [state.rank for state in states if state.phase is RankPhase.RUNNING]
            slowest = reports.delaying_rank(running)
            ranks = [
                {
                    "rank": state.rank,
                    "state": _STATES.get(state.phase, "Waiting"),
                    "step": reports.step_of(state.rank),
                    "times": metrics.times.of(state.rank),
                }
                for state in states
            ]
            straggler = reports.times.straggler()
            machine = self._figures.machines.document()
            left = None if progress is None else reports.left_s(progress)
        failure = verdict.failure if verdict else None
        now = {
            "outcome": snapshot.state,
            "worldSize": snapshot.world_size,
            "failure": failure_json(failure) if failure else None,
            "progress": snapshot.progress(),
        }
        summary = summarize_attempt(files, now)
        return {
            "live": True,
            **page_header(summary),
            "files": self._files(),
            "attempts": [*self._others, summary.document()],
            "left": left,
            "now": time.time(),
            "curves": curves,
            "axes": axes,
            "leftOut": left_out,
            "machine": machine,
            "about": snapshot.about.document if snapshot.about else {},
            "ranks": ranks,
            "slowest": slowest,
            "straggler": None if straggler is None else vars(straggler),
            "elastic": snapshot.backend_status().get("elastic"),
            "logs": {"lines": snapshot.store.lines, "dropped": snapshot.store.dropped},
            "events": (events := read_log_events(files)),
            "start": start_part_durations(events),
        }

    def _files(self) -> list[str]:
        """Return the names of files that the page offers for download."""
        files, timeline = self._snapshot.store.files, self._snapshot.config.timeline
        known = files.downloads()
        here = timeline is not None and timeline.is_file() and files.timeline.name not in known
        return [*known, files.timeline.name] if here else known

    def encoded(self) -> bytes:
        """Return `document()` as JSON, with null for NaN and infinities."""
        return json.dumps(clean_json(self.document()), ensure_ascii=False, separators=(",", ":")).encode(
            errors="replace"
        )
