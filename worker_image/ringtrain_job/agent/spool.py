"""Queue of log lines for the launcher: in memory, then on disk. Beyond the limits of memory and disk, lines are dropped
and counted.

No method waits for the network. A record gets its sequence number when it is added. Records dropped because of a limit
get none but are counted, and the rank's next record that fits is preceded by a line with their number.
"""

import itertools
import struct
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from ringtrain.errors import counted
from ringtrain_job.logs.journal import LogStream
from ringtrain_job.logs.records import count_records
from ringtrain_job.logs.store import LogChunk

MEMORY_BYTES = 16 << 20
DISK_BYTES = 1 << 30
# A chunk needs memory in addition to its data. Counting it keeps many small chunks within the limit.
_OVERHEAD = 200
_FRAME = struct.Struct("<BIQII")
# Number of files of the disk part; the space of one is freed when it has been read.
_FILES = 8


class LogSpool:
    """First-in, first-out queue of log chunks for the launcher. Thread-safe.

    `memory_bytes`, `disk_bytes`: limits. The disk part uses unnamed temporary files, created when needed.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES, disk_bytes: int = DISK_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._disk = _SpoolDiskQueue(disk_bytes)
        self._memory: deque[LogChunk] = deque()
        self._memory_size = 0
        self._in_flight: list[LogChunk] = []
        self._next: dict[tuple[LogStream, int], int] = {}
        self._unsaid: Counter[tuple[LogStream, int]] = Counter()
        self._dropped: Counter[int] = Counter()
        self._closed = False
        self._changed = threading.Condition()

    def put(self, stream: LogStream, rank: int, data: bytes) -> None:
        """Add complete log records of one rank; count them as dropped if the queue is full."""
        if not data:
            return
        with self._changed:
            self._log_dropped(stream, rank)
            lines = count_records(data)
            if self._unsaid[stream, rank] or not self._store(stream, rank, lines, data):
                self._unsaid[stream, rank] += lines
                if stream is LogStream.LOG:
                    self._dropped[rank] += lines
            self._changed.notify_all()

    def offer(self, stream: LogStream, rank: int, data: bytes) -> None:
        """Add a record of the agent itself. If the queue is full, it is dropped without being counted."""
        with self._changed:
            if not self._unsaid[stream, rank]:
                self._store(stream, rank, count_records(data), data)
            self._changed.notify_all()

    def continue_from(self, stream: LogStream, rank: int, last: int) -> None:
        """Number the records of `rank` in `stream` from `last` + 1, where an earlier agent stopped.

        Does nothing if this queue has received records of the rank already.
        """
        with self._changed:
            self._next.setdefault((stream, rank), last + 1)

    def take(self, limit_bytes: int, timeout_s: float) -> list[LogChunk]:
        """Return the oldest chunks, about `limit_bytes` together. Returns the same chunks until `done` is called.

        Waits up to `timeout_s` for the first chunk; the list is empty if no chunk comes.
        """
        with self._changed:
            if self._in_flight:
                return self._in_flight
            self._changed.wait_for(lambda: self._memory or self._disk.waiting or self._closed, timeout_s)
            size = 0
            taken = []
            while size < limit_bytes and (chunk := self._pop()) is not None:
                taken.append(chunk)
                size += len(chunk.data)
            self._in_flight = coalesce_spooled_chunks(taken)
            return self._in_flight

    def done(self, durable: dict[tuple[LogStream, int], int]) -> bool:
        """Delete the chunks of the last `take` up to the sequence numbers `durable`; return whether none is left."""
        with self._changed:
            self._in_flight = [
                chunk
                for chunk in self._in_flight
                if durable.get((chunk.stream, chunk.rank), 0) < chunk.first + chunk.lines - 1
            ]
            return not self._in_flight

    def dropped(self) -> dict[int, int]:
        """Return the number of dropped log lines by rank."""
        with self._changed:
            return dict(self._dropped)

    def finish(self, rank: int) -> None:
        """Add the line that tells how many records of an ended rank were dropped, even if the queue is full."""
        with self._changed:
            for stream in LogStream:
                self._log_dropped(stream, rank, force=True)
            self._changed.notify_all()

    @property
    def empty(self) -> bool:
        """Whether the launcher has stored all records."""
        with self._changed:
            return not (self._in_flight or self._memory or self._disk.waiting)

    def rest(self) -> Iterator[LogChunk]:
        """Yield and remove all chunks that the launcher has not stored, in order."""
        with self._changed:
            taken, self._in_flight = self._in_flight, []
        yield from taken
        while (chunk := self._popped()) is not None:
            yield chunk

    def close(self) -> None:
        """Wake threads that wait in `take`, and free disk space."""
        with self._changed:
            self._closed = True
            self._disk.close()
            self._changed.notify_all()

    def _log_dropped(self, stream: LogStream, rank: int, force: bool = False) -> None:
        count = self._unsaid[stream, rank]
        if not count:
            return
        text = (
            f"[ringtrain] dropped {counted(count, 'line' if stream is LogStream.LOG else 'report')} of rank {rank}: "
            "the launcher did not receive them in time and the agent's queue was full\n"
        ).encode()
        if self._store(LogStream.LOG, rank, 1, text, force=force):
            del self._unsaid[stream, rank]

    def _store(self, stream: LogStream, rank: int, lines: int, data: bytes, force: bool = False) -> bool:
        first = self._next.get((stream, rank), 1)
        chunk = LogChunk(stream, rank, first, lines, data)
        cost = len(data) + _OVERHEAD
        if not self._disk.waiting and (force or self._memory_size + cost <= self._memory_bytes):
            self._memory.append(chunk)
            self._memory_size += cost
        elif not self._disk.push(chunk, force):
            return False
        self._next[stream, rank] = first + lines
        return True

    def _popped(self) -> LogChunk | None:
        with self._changed:
            return self._pop()

    def _pop(self) -> LogChunk | None:
        if self._memory:
            chunk = self._memory.popleft()
            self._memory_size -= len(chunk.data) + _OVERHEAD
            return chunk
        return self._disk.pop()


def coalesce_spooled_chunks(chunks: Sequence[LogChunk]) -> list[LogChunk]:
    """Join consecutive chunks of the same rank and stream, so that the launcher writes less often."""
    joined = []
    for (stream, rank), run in itertools.groupby(chunks, key=lambda chunk: (chunk.stream, chunk.rank)):
        parts = list(run)
        lines = sum(part.lines for part in parts)
        joined.append(LogChunk(stream, rank, parts[0].first, lines, b"".join(part.data for part in parts)))
    return joined


class _SpoolDiskQueue:
    """Queue of chunks in temporary files. A file is deleted once it was read. After a disk error on
    an empty queue, nothing is added."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._files: deque[_SpoolDiskFile] = deque()
        self._broken = bound <= 0

    @property
    def waiting(self) -> bool:
        return any(file.waiting for file in self._files)

    def push(self, chunk: LogChunk, force: bool = False) -> bool:
        frame = _FRAME.pack(chunk.stream, chunk.rank, chunk.first, chunk.lines, len(chunk.data)) + chunk.data
        if self._broken or (sum(file.size for file in self._files) + len(frame) > self._bound and not force):
            return False
        try:
            if not self._files or self._files[-1].size >= self._bound // _FILES:
                self._files.append(_SpoolDiskFile())
            return self._files[-1].append(frame)
        except OSError:
            self._broken = not self.waiting
            return False

    def pop(self) -> LogChunk | None:
        while self._files:
            chunk = self._files[0].pop() if self._files[0].waiting else None
            if not self._files[0].waiting:
                self._files.popleft().close()
            if chunk is not None:
                return chunk
        return None

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._files.clear()
        self._broken = True


class _SpoolDiskFile:
    """Temporary file with a queue of chunks: written at its end, read from its start."""

    def __init__(self) -> None:
        self._file: BinaryIO = tempfile.TemporaryFile(prefix="ringtrain-spool-", buffering=0)  # noqa: SIM115
        self._read = 0
        self.size = 0

    @property
    def waiting(self) -> bool:
        return self.size > self._read

    def append(self, frame: bytes) -> bool:
        self._file.seek(self.size)
        if self._file.write(frame) != len(frame):
            return False
        self.size += len(frame)
        return True

    def pop(self) -> LogChunk:
        self._file.seek(self._read)
        stream, rank, first, lines, size = _FRAME.unpack(self._file.read(_FRAME.size))
        data = self._file.read(size)
        self._read += _FRAME.size + size
        return LogChunk(LogStream(stream), rank, first, lines, data)

    def close(self) -> None:
        self._file.close()
