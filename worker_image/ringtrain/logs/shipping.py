"""Copies of an attempt's files in an object store: made while the files grow, read when no pod is left.

    <uri>/0002/000/rank-0003.log/000000000000-000004194304

is what the first launcher (000) of attempt 2 had of rank 3's log in these bytes. A launcher that finds no files of
the one before it begins anew, in 001. The local files stay as they are: nothing is removed because it was shipped.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ringtrain.errors import StorageError
from ringtrain.logs.layout import AttemptFiles
from ringtrain.storage import ObjectStore

log = logging.getLogger(__name__)

# A segment is closed when it is so long, or so old.
SEGMENT_BYTES = 4 << 20
SEGMENT_S = 30.0
# Older, where there are very many ranks: each has a segment of its own.
_FILE_S = 0.5
# Of one call to the store while the job runs.
_CALL_S = 20.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_SEGMENT = re.compile(r"(\d{12,})-(\d{12,})")


class LogShipping:
    """Copies the files of an attempt on a thread of its own. What it cannot copy it says, and tries again."""

    def __init__(
        self, uri: str, files: AttemptFiles, attempt: int, resumed: bool, sizes: Callable[[], Mapping[Path, int]]
    ) -> None:
        """`sizes`: how far the files are good now. `resumed`: they are those of a launcher before this one.

        Raises ConfigurationError for a URI that cannot be opened here.
        """
        self._store = ObjectStore(uri, _CALL_S)
        self._files = files
        self._attempt = attempt
        self._resumed = resumed
        self._sizes = sizes
        self._folder = ""
        self._shipped: dict[str, int] = {}
        self._end = threading.Event()
        self._now = threading.Event()
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name="ringtrain-log-shipping", daemon=True)
        self._thread.start()

    @property
    def pending_bytes(self) -> int:
        """How much of the files is not in the store."""
        return sum(size - self._shipped.get(path.name, 0) for path, size in self._sizes().items())

    def finish(self, deadline_s: float, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Copy what is left, for at most `deadline_s` or until `give_up()`; return whether all is in the store.

        The log says how much is not, and where it still is.
        """
        self._end.set()
        self._now.set()
        deadline = time.monotonic() + deadline_s
        while self._thread.is_alive() and time.monotonic() < deadline and not give_up():
            self._thread.join(0.1)
        if self._thread.is_alive() or self.problem:
            log.error(
                "%d bytes of logs are not in %s and remain in %s alone: %s",
                self.pending_bytes,
                self._store.uri,
                self._files.directory,
                self.problem or f"not done within {deadline_s:g} s",
            )
            return False
        self._store.close()
        return True

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            ends = self._end.is_set()
            try:
                self._ship()
                if ends:
                    self._ship_notes()
            except (StorageError, OSError) as error:
                if str(error) != self.problem:
                    log.error("logs are kept in %s and not shipped for now: %s", self._files.directory, error)
                self.problem = str(error)
                self._wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                continue
            if self.problem:
                log.info("logs are shipped to %s again", self._store.uri)
            self.problem, pause = "", _FIRST_PAUSE_S
            if ends:
                return
            self._wait(SEGMENT_S + _FILE_S * len(self._shipped))

    def _wait(self, seconds: float) -> None:
        self._now.wait(seconds)
        self._now.clear()

    def _ship(self) -> None:
        if not self._folder:
            self._begin()
        for path, size in sorted(self._sizes().items()):
            start = self._shipped.get(path.name, 0)
            with path.open("rb") as file:
                while start < size:
                    file.seek(start)
                    data = file.read(min(SEGMENT_BYTES, size - start))
                    stop = start + len(data)
                    self._store.write(f"{self._folder}/{path.name}/{start:012d}-{stop:012d}", data)
                    self._shipped[path.name] = start = stop

    def _begin(self) -> None:
        """Find out what a launcher of this attempt has shipped before."""
        attempt = f"{self._attempt:04d}"
        lives = [name for name in self._store.folders(attempt) if name.isdecimal()]
        if not lives or not self._resumed:
            self._folder = f"{attempt}/{len(lives):03d}"
            return
        folder = f"{attempt}/{lives[-1]}"
        shipped = {n: max(stop for _, stop, _ in found) for n, found in _segments(self._store, folder).items()}
        sizes = {path.name: size for path, size in self._sizes().items()}
        if any(size > sizes.get(name, 0) for name, size in shipped.items()):  # the disk has lost some of it
            self._folder = f"{attempt}/{len(lives):03d}"
            return
        self._folder, self._shipped = folder, shipped

    def _ship_notes(self) -> None:
        for path in (self._files.outcome, *self._files.directory.glob("*.html")):
            if path.exists():
                self._store.write(f"{self._folder}/{path.name.lstrip('.')}", path.read_bytes())


def shipped_attempts(store: ObjectStore) -> list[int]:
    """Attempts of which something is in `store`."""
    return [int(name) for name in store.folders() if name.isdecimal()]


def read_shipped(store: ObjectStore, attempt: int, name: str, tail: int | None = None) -> Iterator[bytes]:
    """What `store` has of the file `name` of an attempt, or its last `tail` lines. Raises StorageError."""
    found: list[str] = []
    for life in store.folders(f"{attempt:04d}"):
        segments = _segments(store, f"{attempt:04d}/{life}").get(name, [])
        found += _in_order(segments)
    if tail is None:
        for segment in found:
            yield store.read(segment)
        return
    kept: list[bytes] = []
    lines = 0
    while found and lines <= tail and tail:
        kept.insert(0, store.read(found.pop()))
        lines += kept[0].count(b"\n")
    yield b"".join(b"".join(kept).splitlines(keepends=True)[-tail:] if tail else ())


def shipped_names(store: ObjectStore, attempt: int) -> set[str]:
    """Names of the files of which `store` has something."""
    lives = store.folders(f"{attempt:04d}")
    return {name for life in lives for name in _segments(store, f"{attempt:04d}/{life}")}


def _segments(store: ObjectStore, folder: str) -> dict[str, list[tuple[int, int, str]]]:
    found: dict[str, list[tuple[int, int, str]]] = {}
    for path in store.names(folder):
        parent, _, last = path.rpartition("/")
        match = _SEGMENT.fullmatch(last)
        if match:
            name = parent.rpartition("/")[2]
            found.setdefault(name, []).append((int(match[1]), int(match[2]), path))
    return found


def _in_order(segments: list[tuple[int, int, str]]) -> list[str]:
    """The segments that make the file: where two begin alike, the longer; a write may have been cut off after it
    was done, and repeated with what had come since."""
    longest: dict[int, tuple[int, str]] = {}
    for start, stop, path in segments:
        longest[start] = max(longest.get(start, (0, "")), (stop, path))
    found, position = [], 0
    while position in longest:
        position, path = longest[position]
        found.append(path)
    return found
