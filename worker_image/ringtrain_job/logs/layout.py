"""Names of the files in an attempt's log folder."""

import os
import re
import weakref
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


class OpenFolder:
    """Folder that a person may rename or move within its file system while this process uses it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: Final = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(self, os.close, self._descriptor)

    @property
    def path(self) -> Path:
        """Present path of the folder; its last one if it was deleted."""
        if self._link != str(self._path) and not self.is_deleted:
            self._path = Path(self._link)
        return self._path

    @property
    def is_deleted(self) -> bool:
        """Whether the folder was deleted, or moved to another file system."""
        return self._link.endswith(" (deleted)") and not os.path.exists(self._link)  # the kernel appends it

    @property
    def _link(self) -> str:
        return os.readlink(f"/proc/self/fd/{self._descriptor}")


class _FileName:
    """Attribute of `AttemptFiles`: the present path of the file `name`."""

    def __init__(self, name: str) -> None:
        self._name: Final = name

    def __get__(self, files: "AttemptFiles", _: object = None) -> Path:
        return files.directory / self._name


class AttemptFiles:
    """Paths of the files in an attempt's log folder, `<root>/<namespace>/<job>/<attempt>`."""

    # All ranks' lines, each with the prefix `[rank] `.
    job_log: Final = _FileName("job.log")
    # Report lines, with rank and attempt added.
    metrics: Final = _FileName("metrics.jsonl")
    # Samples that agents take of their machines: see `logs/samples.py`.
    machine: Final = _FileName("machine.jsonl")
    # Command, versions, configuration: see `logs/about.py`.
    run: Final = _FileName("run.json")
    # Valid sizes of the files above: see `logs/journal.py`.
    journal: Final = _FileName(".journal")
    outcome: Final = _FileName(".outcome.json")  # the termination message, after the end of the attempt
    # Events of the attempt: see `logs/events.py`.
    events: Final = _FileName("events.jsonl")
    # Timeline of the ranks, if they wrote one on this machine: see `timeline.py`.
    timeline: Final = _FileName("timeline.json")
    report: Final = _FileName("report.html")
    # Address of the page of a local run that is in progress: see `page/access.py`.
    page: Final = _FileName(".page.json")
    # Folder in the object store to which these files are copied: see `logs/shipping.py`.
    shipping: Final = _FileName(".shipping.json")
    # Members of an elastic job's world: see `launcher/elastic.py`.
    generations: Final = _FileName(".formation.json")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._folder: OpenFolder | None = None

    @property
    def directory(self) -> Path:
        """The log folder. After `follow`, its present path."""
        return self._folder.path if self._folder else self._directory

    @property
    def is_deleted(self) -> bool:
        """Whether the log folder was deleted after `follow`."""
        return self._folder is not None and self._folder.is_deleted

    def follow(self) -> None:
        """Open the existing folder: if it or a folder above is renamed, the paths are those of the renamed folder."""
        self._folder = OpenFolder(self._directory)

    def unfollow(self) -> None:
        """Close the folder that `follow` opened, and keep its present path."""
        self._directory, self._folder = self.directory, None

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
