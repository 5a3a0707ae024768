"""Files of the log store: write chunks of records from agents, each record once and in order."""

import fcntl
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ringtrain_job.logs import journal
from ringtrain_job.logs.journal import JournalEntry, LogStream
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.records import TAIL_BYTES, last_record_lines, prefixed_records, rank_of_line, skip_records
from ringtrain_job.logs.reports import BadReport, parse_report, stored_reports
from ringtrain_job.logs.samples import MachineSample, read_samples

log = logging.getLogger(__name__)

# Seconds that a write may block; a longer one delays only its own agent's lines.
_LOCK_S = 1.0
# Limit on open rank files: reopening one costs less than a write to it.
MOST_OPEN = 4096


@dataclass(frozen=True)
class LogChunk:
    """Consecutive records of one rank. `first`: sequence number of the first, from 1; `lines`: number of records."""

    stream: LogStream
    rank: int
    first: int
    lines: int
    data: bytes


class LogStore:
    """Log files of one attempt, open for appending. Thread-safe.

    Callbacks run in order, after the write: `on_merged` with the lines added to `job.log`, `on_report` with (rank,
    report) for each added report, `on_machine` with an agent's sample of its machine, `on_about` with (rank,
    description of the run). Their exceptions are logged once and stop nothing.
    """

    def __init__(self, files: AttemptFiles, uid: str, attempt: int, most_open: int = MOST_OPEN) -> None:
        """Open the files, or continue those of an earlier launcher. `most_open`: maximum number of open rank files."""
        self.files = files
        self._most_open = most_open
        self._attempt = attempt
        self._lock = threading.Lock()
        self._last: dict[tuple[LogStream, int], int] = {}
        self._open: dict[str, BinaryIO] = {}  # by name, as people may rename the folder
        self._dropped: dict[tuple[str, int], int] = {}
        self._complained: set[int] = set()
        self._listener_failed = False
        self._has_noted_loss = False
        self.on_merged: Callable[[bytes], None] = lambda _: None
        self.on_report: Callable[[int, dict[str, Any]], None] = lambda *_: None
        self.on_machine: Callable[[MachineSample], None] = lambda _: None
        self.on_about: Callable[[int, dict[str, Any]], None] = lambda *_: None
        self.resumed = self._recover(uid)
        files.follow()
        self._merged = _count_merged(files.job_log)
        self.refused = ""  # reason why the last received lines are not in the files
        self._journal: BinaryIO = files.journal.open("ab", buffering=0)
        self._journal.seek(0, 2)
        # the lock shows a list of runs that this one is in progress; a file system may not support locks
        with suppress(OSError):
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not self.resumed:
            self._journal.write(journal.journal_header(uid))
        files.job_log.touch()  # exists even if ranks write nothing

    @property
    def lines(self) -> int:
        """Number of log records in the files. Reading it does not block."""
        return sum(last for (stream, _), last in list(self._last.items()) if stream is LogStream.LOG)

    @property
    def merged_lines(self) -> Mapping[int, int]:
        """Number of lines in `job.log` by rank. It may exceed the number of records, because a line that is printed
        slowly becomes several lines."""
        return self._merged

    def last(self, stream: LogStream, rank: int) -> int:
        """Return the sequence number of the rank's last stored record in `stream`; 0 if none."""
        return self._last.get((stream, rank), 0)

    @property
    def dropped(self) -> int:
        """Number of log records that agents have dropped. Reading it does not block."""
        return sum(list(self._dropped.values()))

    def note_dropped(self, agent: str, rank: int, lines: int) -> None:
        """Record that the agent process `agent` has dropped `lines` records of `rank` in all."""
        self._dropped[agent, rank] = max(lines, self._dropped.get((agent, rank), 0))

    def append(self, chunk: LogChunk) -> int:
        """Write the records in `chunk` that are new; return the last stored sequence number of its stream.

        A repeated chunk changes nothing. A chunk beyond the next sequence number means that an earlier launcher had
        acknowledged the missing records and its files are lost: a line in the log says so. Raises OSError if the disk
        fails, and TimeoutError (a subclass) if another write hangs; nothing is written then.
        """
        if not self._lock.acquire(timeout=_LOCK_S):
            raise TimeoutError(f"a write to {self.files.directory} takes longer than {_LOCK_S:g} s")
        try:
            key = (chunk.stream, chunk.rank)
            last = self._last.get(key, 0)
            known = last + 1 - chunk.first
            if known >= chunk.lines:
                return last
            data = skip_records(chunk.data, known) if known > 0 else chunk.data
            newest = chunk.first + chunk.lines - 1
            if chunk.stream is LogStream.LOG:
                missing = _missing_log_records(last, chunk) if known < 0 else b""
                self._append_log(chunk.rank, newest, missing + data)
            else:
                self._append_reports(chunk.rank, newest, data)
            return newest
        finally:
            self._lock.release()

    def sizes(self) -> dict[Path, int]:
        """Return the size of each log file, up to the last complete write. Raises TimeoutError if a write takes too
        long."""
        if not self._lock.acquire(timeout=_LOCK_S):
            raise TimeoutError(f"a write to {self.files.directory} takes longer than {_LOCK_S:g} s")
        try:
            shared = (self.files.job_log, self.files.metrics, self.files.machine)
            found = (*shared, *self.files.directory.glob("rank-*.log"))
            return {path: path.stat().st_size for path in found if path.exists()}
        finally:
            self._lock.release()

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (rank, report) for each stored report, except lines that a crash of the machine has damaged."""
        return stored_reports(self.files.metrics)

    def samples(self) -> Iterator[MachineSample]:
        """Yield the stored samples of the workers' resource use."""
        return read_samples(self.files.machine)

    def tail(self, rank: int) -> tuple[str, ...]:
        """Return the last lines of the log of `rank`."""
        path = self.files.rank_log(rank)
        if not path.exists():
            return ()
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            return last_record_lines(file.read())

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            for file in self._open.values():
                file.close()
            self._open.clear()
            self._journal.close()
            self.files.unfollow()

    def _append_log(self, rank: int, newest: int, data: bytes) -> None:
        own = self._file(self.files.rank_log(rank))
        job_log = self._file(self.files.job_log)
        merged = prefixed_records(rank, data)
        entry = JournalEntry(LogStream.LOG, rank, newest, own.tell() + len(data), job_log.tell() + len(merged))
        _write_logs_together((own, data), (job_log, merged), (self._journal, journal.encode_journal_entry(entry)))
        self._last[LogStream.LOG, rank] = newest
        self._merged[rank] += merged.count(b"\n")
        self._notify(self.on_merged, merged)

    def _append_reports(self, rank: int, newest: int, data: bytes) -> None:
        every = list(self._reports(rank, data))
        samples = [sample for report in every if (sample := report.get("machine"))]
        reports = [report for report in every if not (report.get("machine") or report.get("about"))]
        rows = ({**report, "rank": rank, "attempt": self._attempt} for report in reports)
        text = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        written = []
        if reports or self.files.metrics.exists():  # no file for a job without reports
            written.append((self._file(self.files.metrics), text))
        size = sum(file.tell() + len(added) for file, added in written)
        job_log, note = self._file(self.files.job_log), b"" if self._has_noted_loss else _loss_note(rank, reports)
        written += [(job_log, note)] if note else []
        entry = JournalEntry(LogStream.REPORT, rank, newest, size, job_log.tell() + len(note))
        _write_logs_together(*written, (self._journal, journal.encode_journal_entry(entry)))
        self._last[LogStream.REPORT, rank] = newest
        if note:
            self._has_noted_loss = True
            self._notify(self.on_merged, note)
        for report in reports:
            self._notify(self.on_report, rank, report)
        for about in filter(None, (report.get("about") for report in every)):
            self._notify(self.on_about, rank, about)
        self._store_samples(samples)

    def _store_samples(self, samples: Sequence[MachineSample]) -> None:
        """Store samples of resource use, without the journal: a kill may repeat or lose the last sample."""
        if samples:
            with suppress(OSError):  # a full disk also shows at the next report
                text = "".join(f"{json.dumps(sample.document())}\n" for sample in samples)
                with self.files.machine.open("ab") as file:
                    file.write(text.encode())
        for sample in samples:
            self._notify(self.on_machine, sample)

    def _notify(self, listener: Callable[..., None], *what: Any) -> None:
        """Call `listener`. Its first exception is logged; no exception stops the store."""
        try:
            listener(*what)
        except Exception:
            if not self._listener_failed:
                log.exception("internal error: a stored line could not be shown or counted; logged only once")
            self._listener_failed = True

    def _reports(self, rank: int, data: bytes) -> Iterator[dict[str, Any]]:
        for line in data.splitlines():
            try:
                yield parse_report(line)
            except BadReport as error:
                if rank not in self._complained:
                    log.warning(
                        "ignored an invalid report of rank %d: %s; further ones of this rank are not logged",
                        rank,
                        error,
                    )
                self._complained.add(rank)

    def _file(self, path: Path) -> BinaryIO:
        file = self._open.pop(path.name, None)
        if file is None:
            self._close_oldest()
            # Lines of a run whose folder a person has deleted are discarded: agents would wait for a place for them.
            file = open(os.devnull if self.files.is_deleted else path, "ab", buffering=0)  # noqa: SIM115
            file.seek(0, 2)
        self._open[path.name] = file  # the newest is the last
        return file

    def _close_oldest(self) -> None:
        """Close the least recently used rank file if `most_open` files are open."""
        shared = (self.files.job_log.name, self.files.metrics.name)
        if len(self._open) >= self._most_open + len(shared):
            oldest = next(name for name in self._open if name not in shared)
            self._open.pop(oldest).close()

    def _recover(self, uid: str) -> bool:
        """Continue the files of an earlier launcher of this attempt; return whether there was such a launcher."""
        directory = self.files.directory
        state = _read_journal(self.files.journal)
        if state.uid != uid:
            _move_log_aside(directory, state.uid)
            directory.mkdir(parents=True, exist_ok=True)
            return False
        for (stream, rank), entry in state.entries.items():
            self._last[stream, rank] = entry.last
            if stream is LogStream.LOG:
                _cut_log_file(self.files.rank_log(rank), entry.own_size)
        for rank, path in self.files.rank_logs().items():
            if (LogStream.LOG, rank) not in state.entries:
                _cut_log_file(path, 0)
        _cut_log_file(self.files.job_log, state.job_size)
        _cut_log_file(self.files.metrics, state.metrics_size)
        _cut_log_file(self.files.journal, state.good_bytes)
        return True


def _count_merged(job_log: Path) -> Counter[int]:
    if not job_log.exists():
        return Counter()
    with job_log.open("rb") as lines:
        return Counter(rank for line in lines if (rank := rank_of_line(line)) is not None)


def _missing_log_records(last: int, chunk: LogChunk) -> bytes:
    text = f"[ringtrain] lines {last + 1} to {chunk.first - 1} of rank {chunk.rank} are missing: "
    return (text + "they were lost with an earlier launcher's files\n").encode()


def _loss_note(rank: int, reports: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a line for job.log about the first loss in `reports` that is NaN or infinite; empty if all are finite."""
    for report in reports:
        if word := (report.get("notFinite") or {}).get("loss"):
            return f"[ringtrain] the loss of rank {rank} is {word} at step {report['step']}\n".encode()
    return b""


def _read_journal(path: Path) -> journal.RecoveredJournal:
    return journal.recover_journal(path.read_bytes()) if path.exists() else journal.RecoveredJournal(None)


def _move_log_aside(directory: Path, uid: str | None) -> None:
    """Rename `directory`, which contains the logs of another job (with UID `uid`) of the same name."""
    if not directory.exists() or not any(directory.iterdir()):
        return
    number = 1
    while (aside := directory.with_name(f"{directory.name}.earlier-{number}")).exists():
        number += 1
    log.warning("%s contained the logs of another job (UID %s), which were moved to %s", directory, uid, aside.name)
    directory.rename(aside)


def _cut_log_file(path: Path, size: int) -> None:
    if not path.exists():
        return
    length = path.stat().st_size
    if length > size:
        with path.open("r+b") as file:
            file.truncate(size)
    elif length < size:
        log.warning("%s lacks %d bytes that were acknowledged: its disk has lost them", path, size - length)


def _write_logs_together(*parts: tuple[BinaryIO, bytes]) -> None:
    """Append data to several files. If one write fails, such as on a full disk, undo all writes."""
    sizes = [file.tell() for file, _ in parts]
    try:
        for file, data in parts:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
    except OSError:
        for (file, _), size in zip(parts, sizes, strict=True):
            file.truncate(size)
            file.seek(size)
        raise
