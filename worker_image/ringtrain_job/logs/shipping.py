"""Upload of an attempt's log files to an object store while they grow, and reading them from there.

    <uri>/0002/000-9f0c21d4/rank-0003.log/000000000000-000004194304

contains these bytes of rank 3's log, as the first launcher (000-9f0c21d4) of attempt 2 stored them. A launcher that
finds no files of its predecessor begins a new folder, 001-…; two launchers that do not know each other never share a
folder. Local files are not removed after the upload.
"""

import json
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ringtrain.errors import StorageError
from ringtrain.shared.storage import ObjectStore
from ringtrain_job.logs.layout import AttemptFiles, replace_whole

log = logging.getLogger(__name__)

# A segment is closed at this size or age.
SEGMENT_BYTES = 4 << 20
SEGMENT_S = 30.0
# Added to the age for each file, because each rank has its own segment.
_FILE_S = 0.5
# Deadline of one call to the store while the job runs.
_CALL_S = 20.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_SEGMENT = re.compile(r"(\d{12,})-(\d{12,})")
_LIFE = re.compile(r"\d{3,}(-[0-9a-f]{8})?")
# Limit on the length of a store's error in the status.
_PROBLEM_CHARACTERS = 500


@dataclass(frozen=True)
class Unshipped:
    """Log data that is not in the object store yet. `problem`: the error; empty if the upload is not due yet. `since`:
    time of the first error, in seconds since the epoch."""

    uri: str
    pending_bytes: int
    problem: str = ""
    since: float | None = None

    def document(self) -> dict[str, Any]:
        """Return the state of log shipping as a JSON object (docs/contract.md)."""
        return {
            "uri": self.uri,
            "pendingBytes": self.pending_bytes,
            "problem": self.problem[:_PROBLEM_CHARACTERS] or None,
            "since": self.since,
        }


class LogShipping:
    """Thread that uploads an attempt's log files to an object store. It logs failures and retries."""

    def __init__(self, uri: str, files: AttemptFiles, attempt: int, sizes: Callable[[], Mapping[Path, int]]) -> None:
        """Start the thread. Call this before any file is written. `sizes`: returns the valid size of each file.

        Raises ConfigurationError for a URI that cannot be opened here.
        """
        self._store = ObjectStore(uri, _CALL_S)
        self._files = files
        self._attempt = f"{attempt:04d}"
        self._sizes = sizes
        # Sizes before any write: how much of the files comes from the previous launcher.
        self._found = {path.name: size for path, size in sizes().items()}
        self._life: _ShippedLogFolder | None = None
        # Number of bytes of each file in the store.
        self._shipped: dict[str, int] = {}
        self._end = threading.Event()
        self._now = threading.Event()
        self._known = 0
        self._since: float | None = None
        self._kind: type[Exception] | None = None
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name="ringtrain-log-shipping", daemon=True)
        self._thread.start()

    @property
    def pending_bytes(self) -> int:
        """Number of bytes that are not in the object store. If a write hangs, the last known number."""
        with suppress(OSError):  # the uploading thread gets the same error and logs it
            self._known = sum(size - self._done(path.name) for path, size in self._sizes().items())
        return self._known

    def _done(self, name: str) -> int:
        """Return how many bytes of the file `name` are in the object store."""
        base = self._life.base.get(name, 0) if self._life else 0
        return self._shipped.get(name, base)

    def state(self) -> Unshipped:
        """Return how much data is not in the object store, and why."""
        return Unshipped(self._store.uri, self.pending_bytes, self.problem, self._since)

    def finish(self, deadline_s: float, give_up: Callable[[], bool] = lambda: False) -> Unshipped | None:
        """Upload the remaining data, for at most `deadline_s` or until `give_up()`. Return a description of the data
        that is still missing, whose size and location are also logged; None if all data was uploaded.
        """
        self._end.set()
        self._now.set()
        deadline = time.monotonic() + deadline_s
        while self._thread.is_alive() and time.monotonic() < deadline and not give_up():
            self._thread.join(0.1)
        if self._thread.is_alive():
            left = self.state()
            left = replace(left, problem=left.problem or f"not done within {deadline_s:g} s")
            log.error(
                "%d bytes of logs were not uploaded to %s and are only in %s: %s",
                left.pending_bytes,
                left.uri,
                self._files.directory,
                left.problem,
            )
            return left
        self._store.close()
        return None

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            ends = self._end.is_set()
            try:
                self._ship()
                if ends:
                    self._ship_notes()
            except Exception as error:  # any error: a thread that ended would look like one that is done
                self._report_problem(error)
                self._wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                continue
            if self.problem:
                log.info("uploading logs to %s again", self._store.uri)
            self.problem, self._since, pause = "", None, _FIRST_PAUSE_S
            if ends:
                return
            self._wait(SEGMENT_S + _FILE_S * len(self._shipped))

    def _report_problem(self, error: Exception) -> None:
        """Log an upload error once, and again if the error's class changes."""
        if self._since is None:
            self._since = time.time()
        defect = not isinstance(error, StorageError | OSError)
        if not self.problem or type(error) is not self._kind:
            log.error("cannot upload the logs in %s now, will retry: %s", self._files.directory, error, exc_info=defect)
        self.problem, self._kind = str(error) or type(error).__name__, type(error)

    def _wait(self, seconds: float) -> None:
        self._now.wait(seconds)
        self._now.clear()

    def _ship(self) -> None:
        life = self._life = self._life or self._begin()
        for path, size in sorted(self._sizes().items()):
            base = life.base.get(path.name, 0)
            start = self._done(path.name)
            with path.open("rb") as file:
                while start < size:
                    file.seek(start)
                    data = file.read(min(SEGMENT_BYTES, size - start))
                    if not data:
                        raise OSError(f"{path} ends at byte {start}, but its journal lists {size} bytes")
                    stop = start + len(data)
                    self._store.write(f"{life.folder}/{path.name}/{start - base:012d}-{stop - base:012d}", data)
                    self._shipped[path.name] = start = stop

    def _begin(self) -> "_ShippedLogFolder":
        """Return the folder in the object store in which to continue.

        This is a new folder if none was used before, or if the local files have lost data that is in the old one.
        """
        life = _read_log_folder(self._files.shipping)
        if life is not None:
            found = _shipped_segments(self._store, life.folder)
            shipped = {
                name: life.base.get(name, 0) + max(stop for _, stop, _ in segments) for name, segments in found.items()
            }
            if all(size <= self._found.get(name, 0) for name, size in shipped.items()):
                self._shipped = shipped
                return life
            # The disk has lost data that is in the store: from here on the content differs.
            base = {name: min(size, shipped.get(name, 0)) for name, size in self._found.items()}
        else:
            base = {}
        number = len([name for name in self._store.folders(self._attempt) if _LIFE.fullmatch(name)])
        life = _ShippedLogFolder(f"{self._attempt}/{number:03d}-{secrets.token_hex(4)}", base)
        replace_whole(self._files.shipping, json.dumps({"folder": life.folder, "base": dict(life.base)}))
        return life

    def _ship_notes(self) -> None:
        assert self._life is not None
        for path in (self._files.outcome, self._files.events, *self._files.directory.glob("*.html")):
            if path.exists():
                self._store.write(f"{self._life.folder}/{path.name.lstrip('.')}", path.read_bytes())


@dataclass(frozen=True)
class _ShippedLogFolder:
    """Folder of an attempt's files in the object store. `base`: byte position at which the data of each file begins."""

    folder: str
    base: Mapping[str, int]


def _read_log_folder(path: Path) -> _ShippedLogFolder | None:
    try:
        document = json.loads(path.read_text())
        return _ShippedLogFolder(str(document["folder"]), {str(name): int(at) for name, at in document["base"].items()})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s is damaged (%s); uploading the logs again from their beginning", path, error)
        return None


def shipped_attempts(store: ObjectStore) -> list[int]:
    """Return the numbers of attempts that have data in `store`."""
    return [int(name) for name in store.folders() if name.isdecimal()]


def read_shipped(store: ObjectStore, attempt: int, name: str, tail: int | None = None) -> Iterator[bytes]:
    """Yield the content of file `name` of an attempt in `store`, or its last `tail` lines. Raises StorageError if the
    store fails.

    Uploaded bytes that are no longer in the store are replaced by a line that says so.
    """
    found: list[_ShippedLogPart] = []
    for life in store.folders(f"{attempt:04d}"):
        segments = _shipped_segments(store, f"{attempt:04d}/{life}").get(name, [])
        found += _segments_in_order(segments, name)
    if tail is None:
        for part in found:
            yield part.read(store)
        return
    kept = b""
    while found and kept.count(b"\n") <= tail and tail:
        kept = found.pop().read(store) + kept
    yield _last_shipped_lines(kept, tail)


def shipped_log_names(store: ObjectStore, attempt: int) -> set[str]:
    """Return the names of an attempt's files that have data in `store`."""
    lives = store.folders(f"{attempt:04d}")
    return {name for life in lives for name in _shipped_segments(store, f"{attempt:04d}/{life}")}


def _last_shipped_lines(text: bytes, lines: int) -> bytes:
    """Return the last `lines` lines of `text`. Only a line feed ends a line."""
    begin = len(text) - text.endswith(b"\n")
    for _ in range(lines):
        if begin < 0:
            break
        begin = text.rfind(b"\n", 0, begin)
    return text[begin + 1 :] if lines else b""


@dataclass(frozen=True)
class _ShippedLogPart:
    """Bytes of one object, from `skip` on. Without an object: a line that says which bytes are missing."""

    path: str
    skip: int = 0
    missing: bytes = b""

    def read(self, store: ObjectStore) -> bytes:
        return store.read(self.path)[self.skip :] if self.path else self.missing


def _shipped_segments(store: ObjectStore, folder: str) -> dict[str, list[tuple[int, int, str]]]:
    found: dict[str, list[tuple[int, int, str]]] = {}
    for path in store.names(folder):
        parent, _, last = path.rpartition("/")
        match = _SEGMENT.fullmatch(last)
        if match:
            name = parent.rpartition("/")[2]
            found.setdefault(name, []).append((int(match[1]), int(match[2]), path))
    return found


def _segments_in_order(segments: list[tuple[int, int, str]], name: str) -> list[_ShippedLogPart]:
    """Return the parts of the file `name` in order. Segments may overlap, because an interrupted write may have been
    repeated with more data. A line replaces missing bytes."""
    found: list[_ShippedLogPart] = []
    position = 0
    for start, stop, path in sorted(segments, key=lambda segment: (segment[0], -segment[1])):
        if stop <= position:
            continue
        if start > position:
            text = f"[ringtrain] bytes {position} to {start} of {name} are missing in the object store\n"
            found.append(_ShippedLogPart("", missing=text.encode()))
        found.append(_ShippedLogPart(path, max(0, position - start)))
        position = stop
    return found
