"""Thread that reads the output of this pod's ranks and queues it for the launcher."""

import os
import selectors
import threading
import time
from collections.abc import Callable, Sequence

from ringtrain.shared import contract
from ringtrain.shared.processes import RankProcess
from ringtrain_job.agent.spool import LogSpool
from ringtrain_job.logs.journal import LogStream
from ringtrain_job.logs.printed import PrintedReports
from ringtrain_job.logs.records import TAIL_BYTES, LogRecordSplitter, last_record_lines

_READ_BYTES = 256 << 10
_LOOK_S = 0.25
# Seconds of silence after which an unfinished line (a prompt, a progress bar before its first redraw) is passed on.
_IDLE_S = 1.0
# Seconds that a pipe may stay open after its rank has ended; a process that the rank left may hold it.
_AFTER_EXIT_S = 1.0
_JOINED = f"{contract.JOINED_LINE}\n".encode()


class _RankPipe:
    """One output pipe of a rank, with its unfinished last line and the newest lines of the log."""

    def __init__(self, stream: LogStream, rank: int, fd: int) -> None:
        self.stream = stream
        self.rank = rank
        self.fd = fd
        self.splitter = LogRecordSplitter()
        self.read_at = time.monotonic()
        self.tail = b""


class RankOutputCollector:
    """Reader of the ranks' pipes; it runs until all pipes are closed.

    `on_closed(rank)`: called when a rank's output is complete. `on_joined`: called when a rank reports that it has
    joined the world, before its output is complete. `printed`: parser of reports in the ranks' output.
    """

    def __init__(
        self,
        spool: LogSpool,
        ranks: Sequence[RankProcess],
        on_closed: Callable[[int], None],
        on_joined: Callable[[], None],
        printed: PrintedReports,
    ) -> None:
        self._spool = spool
        self._printed = printed
        self._on_closed = on_closed
        self._on_joined = on_joined
        self._selector = selectors.DefaultSelector()
        self._sources = [
            _RankPipe(stream, rank.rank, fd)
            for rank in ranks
            for stream, fd in ((LogStream.LOG, rank.log_fd), (LogStream.REPORT, rank.report_fd))
        ]
        for source in self._sources:
            self._selector.register(source.fd, selectors.EVENT_READ, source)
        self._open = {rank.rank: 2 for rank in ranks}
        self._ended_at: dict[int, float] = {}
        self._thread = threading.Thread(target=self._run, name="ringtrain-collector", daemon=True)

    def start(self) -> None:
        """Start the reading thread."""
        self._thread.start()

    def rank_ended(self, rank: int) -> None:
        """Record that the rank's process has ended. After a second, stop reading even if other processes have its pipes
        open."""
        self._ended_at[rank] = time.monotonic()

    def complete(self, rank: int) -> bool:
        """Return whether all output of `rank` has been read and its pipes are closed."""
        return self._open.get(rank, 0) == 0

    def tail(self, rank: int) -> tuple[str, ...]:
        """Return the last lines of `rank`'s log."""
        written = next((s.tail for s in self._sources if s.rank == rank and s.stream is LogStream.LOG), b"")
        return last_record_lines(written)

    def _run(self) -> None:
        while self._selector.get_map():
            for key, _ in self._selector.select(_LOOK_S):
                self._read(key.data)
            now = time.monotonic()
            for key in list(self._selector.get_map().values()):
                self._check_source(key.data, now)
        self._selector.close()

    def _read(self, source: _RankPipe) -> bool:
        """Read from the pipe once; return whether it had data."""
        try:
            data = os.read(source.fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._close(source)
            return False
        source.read_at = time.monotonic()
        self._put(source, source.splitter.feed(data))
        return True

    def _check_source(self, source: _RankPipe, now: float) -> None:
        if now - self._ended_at.get(source.rank, now) > _AFTER_EXIT_S:
            while self._read(source) and time.monotonic() - now < _AFTER_EXIT_S:
                pass
            if source.fd >= 0:
                self._close(source)
        elif source.splitter.pending and now - source.read_at > _IDLE_S:
            self._put(source, source.splitter.flush())

    def _close(self, source: _RankPipe) -> None:
        self._put(source, source.splitter.flush())
        self._selector.unregister(source.fd)
        os.close(source.fd)
        source.fd = -1
        self._open[source.rank] -= 1
        if self.complete(source.rank):
            self._printed.ended(source.rank)
            self._spool.finish(source.rank)
            self._on_closed(source.rank)

    def _put(self, source: _RankPipe, data: bytes) -> None:
        if source.stream is LogStream.LOG and data:
            source.tail = (source.tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        if source.stream is LogStream.REPORT and _JOINED in data:
            data = data.replace(_JOINED, b"")
            self._on_joined()
        self._spool.put(source.stream, source.rank, data)
        if source.stream is LogStream.REPORT:
            self._printed.see_reports(data)
        elif reports := self._printed.read(source.rank, data):
            self._spool.offer(LogStream.REPORT, source.rank, reports)
