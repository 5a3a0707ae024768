"""Where the files of an attempt are."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AttemptFiles:
    """Names of the files under `<root>/<namespace>/<job>/<attempt>`."""

    directory: Path

    @classmethod
    def of(cls, root: Path, namespace: str, job: str, attempt: int) -> "AttemptFiles":
        """The files of one attempt of one job."""
        return cls(root / namespace / job / str(attempt))

    def rank_log(self, rank: int) -> Path:
        """What the rank wrote to stdout and stderr, byte for byte."""
        return self.directory / f"rank-{rank:04d}.log"

    @property
    def job_log(self) -> Path:
        """All ranks' lines, each behind its `[rank] `."""
        return self.directory / "job.log"

    @property
    def metrics(self) -> Path:
        """Report lines, with rank and attempt added."""
        return self.directory / "metrics.jsonl"

    @property
    def journal(self) -> Path:
        """How far the files above are good: see `logs/journal.py`."""
        return self.directory / ".journal"

    @property
    def outcome(self) -> Path:
        """The termination message, once the attempt is over."""
        return self.directory / ".outcome.json"
