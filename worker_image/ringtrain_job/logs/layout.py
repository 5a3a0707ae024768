"""Where the files of an attempt are."""

import os
import re
from pathlib import Path
from typing import Final


def replace_whole(path: Path, text: str) -> None:
    """Write `text` to `path`: whoever looks meanwhile finds the file before, or all of this one. OSError."""
    draft = path.with_suffix(".tmp")
    draft.write_text(text, encoding="utf-8", errors="replace")
    os.replace(draft, path)


class AttemptFiles:
    """Names of the files of an attempt, in `<root>/<namespace>/<job>/<attempt>`."""

    def __init__(self, directory: Path) -> None:
        self.directory: Final = directory
        # All ranks' lines, each behind its `[rank] `.
        self.job_log: Final = directory / "job.log"
        # Report lines, with rank and attempt added.
        self.metrics: Final = directory / "metrics.jsonl"
        # What agents see of their machines: see `logs/samples.py`.
        self.machine: Final = directory / "machine.jsonl"
        # What ran: command, versions, configuration: see `logs/about.py`.
        self.run: Final = directory / "run.json"
        # How far the files above are good: see `logs/journal.py`.
        self.journal: Final = directory / ".journal"
        # The termination message, once the attempt is over.
        self.outcome: Final = directory / ".outcome.json"
        # What happened to the attempt and when: see `logs/events.py`.
        self.events: Final = directory / "events.jsonl"
        # What ranks did when, where they wrote that on this machine: see `timeline.py`.
        self.timeline: Final = directory / "timeline.json"
        # The attempt as one page.
        self.report: Final = directory / "report.html"
        # Of a run of this machine that goes on, where its launcher serves its page: see `page/access.py`.
        self.page: Final = directory / ".page.json"
        # Where in an object store these files are copied to: see `logs/shipping.py`.
        self.shipping: Final = directory / ".shipping.json"
        # Who is in the world of an elastic job: see `launcher/elastic.py`.
        self.formation: Final = directory / ".formation.json"

    @classmethod
    def of(cls, root: Path, namespace: str, job: str, attempt: int) -> "AttemptFiles":
        """The files of one attempt of one job."""
        return cls(root / namespace / job / str(attempt))

    @property
    def number(self) -> int:
        """The attempt's number. Of a folder that was copied or renamed: the digits its name begins with, else 1."""
        found = re.match(r"\d+", self.directory.name)
        return int(found[0]) if found else 1

    def downloads(self) -> list[str]:
        """Names of the files that a page offers beside it."""
        offered = (self.job_log, self.events, self.metrics, self.machine, self.run, self.timeline)
        return [path.name for path in offered if path.is_file()]

    def rank_log(self, rank: int) -> Path:
        """What the rank wrote to stdout and stderr, byte for byte."""
        return self.directory / f"rank-{rank:04d}.log"
