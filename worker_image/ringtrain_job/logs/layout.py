"""Names of the files in an attempt's log folder."""

import os
import re
from pathlib import Path
from typing import Final

_RANK_LOG: Final = re.compile(r"rank-([0-9]{4,9})\.log")
# Files by which a folder is recognized as an attempt's. People delete job.log, often the largest file.
_OWN: Final = re.compile(rf"job\.log|(metrics|events)\.jsonl|\.outcome\.json|{_RANK_LOG.pattern}")


def replace_whole(path: Path, text: str) -> None:
    """Replace the content of the file `path` by `text` atomically: no reader sees a part. Raises OSError if that
    fails."""
    draft = path.with_suffix(".tmp")
    draft.write_text(text, encoding="utf-8", errors="replace")
    os.replace(draft, path)


def is_attempt_file(name: str) -> bool:
    """Return whether `name` is that of a file which only the log folder of an attempt has."""
    return _OWN.fullmatch(name) is not None


class AttemptFiles:
    """Paths of the files in an attempt's log folder, `<root>/<namespace>/<job>/<attempt>`."""

    def __init__(self, directory: Path) -> None:
        self.directory: Final = directory
        # All ranks' lines, each with the prefix `[rank] `.
        self.job_log: Final = directory / "job.log"
        # Report lines, with rank and attempt added.
        self.metrics: Final = directory / "metrics.jsonl"
        # Samples that agents take of their machines: see `logs/samples.py`.
        self.machine: Final = directory / "machine.jsonl"
        # Command, versions, configuration: see `logs/about.py`.
        self.run: Final = directory / "run.json"
        # Valid sizes of the files above: see `logs/journal.py`.
        self.journal: Final = directory / ".journal"
        # The termination message, after the end of the attempt.
        self.outcome: Final = directory / ".outcome.json"
        # Events of the attempt: see `logs/events.py`.
        self.events: Final = directory / "events.jsonl"
        # Timeline of the ranks, if they wrote one on this machine: see `timeline.py`.
        self.timeline: Final = directory / "timeline.json"
        # The attempt as one page.
        self.report: Final = directory / "report.html"
        # Address of the page of a local run that is in progress: see `page/access.py`.
        self.page: Final = directory / ".page.json"
        # Folder in the object store to which these files are copied: see `logs/shipping.py`.
        self.shipping: Final = directory / ".shipping.json"
        # Members of an elastic job's world: see `launcher/elastic.py`.
        self.generations: Final = directory / ".formation.json"

    @classmethod
    def of(cls, root: Path, namespace: str, job: str, attempt: int) -> "AttemptFiles":
        """Return the paths for one attempt of a job."""
        return cls(root / namespace / job / str(attempt))

    @property
    def number(self) -> int:
        """Number of the attempt, from the folder's name. If the name does not begin with digits: 1."""
        found = re.match(r"\d+", self.directory.name)
        return int(found[0]) if found else 1

    def downloads(self) -> list[str]:
        """Return the names of existing files that the page offers for download."""
        offered = (self.job_log, self.events, self.metrics, self.machine, self.run, self.timeline)
        return [path.name for path in offered if path.is_file()]

    def rank_logs(self) -> dict[int, Path]:
        """Return the existing logs of ranks, by rank."""
        paths = sorted(self.directory.glob("rank-*.log"))
        return {int(found[1]): path for path in paths if (found := _RANK_LOG.fullmatch(path.name))}

    def rank_log(self, rank: int) -> Path:
        """Return the path of the file with the rank's stdout and stderr, byte for byte."""
        return self.directory / f"rank-{rank:04d}.log"
