"""TensorBoard sink, which writes one folder of event files for each rank."""

import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ringtrain_job.logs.reports import report_rows
from ringtrain_sinks.base import SinkAttempt

# Limit on ranks, each of which is a run of TensorBoard; of a larger world the first ranks are shown.
MOST_RANKS: Final = 64
# Limit on queued reports while the disk fails.
_MOST_HELD: Final = 20_000
_OURS: Final = "ringtrain"


def open_sink(attempt: SinkAttempt) -> "TensorboardSink":
    """Return a TensorBoard sink that writes to `tensorboard/` in the attempt's log folder. Raises OSError if the folder
    cannot be created."""
    return TensorboardSink(attempt.directory / "tensorboard")


class TensorboardSink:
    """Sink that writes event files per rank to the folder `place`. It deletes Ringtrain's older event files there."""

    def __init__(self, place: Path) -> None:
        """Create the folder `place`. Raises OSError if it cannot be written."""
        place.mkdir(parents=True, exist_ok=True)
        for path in place.glob(f"rank-*/events.out.tfevents.*.{_OURS}"):
            path.unlink()
        self._place = place
        self._writers: dict[int, _TensorboardEventFile] = {}
        self._last: dict[int, float] = {}
        self._queue: deque[tuple[int, Mapping[str, Any]]] = deque(maxlen=_MOST_HELD)

    def add_all(self, chunks: Iterator[bytes]) -> None:
        """Write the reports in `chunks`, the content of a metrics.jsonl. Malformed lines are skipped."""
        for rows in report_rows(chunks):
            for rank, report in rows:
                self.add(rank, report)
            for writer in self._writers.values():
                writer.flush()

    def add(self, rank: int, report: Mapping[str, Any]) -> None:
        """Write one report of `rank` to its event file."""
        if rank >= MOST_RANKS or report.get("startedFrom") is not None:
            return
        writer = self._writers.get(rank)
        if writer is None:
            writer = self._writers[rank] = _TensorboardEventFile(self._place / f"rank-{rank:04d}", report["time"])
        values = {"loss": report.get("loss"), "epoch": report.get("epoch"), **(report.get("metrics") or {})}
        seconds = report["time"] - self._last.get(rank, report["time"])
        self._last[rank] = report["time"]
        if seconds > 0 and report.get("samples") is not None:
            values[f"{report.get('unit') or 'samples'}_per_second"] = report["samples"] / seconds
        values |= report.get("notFinite") or {}
        known = {name: float(value) for name, value in values.items() if value is not None}
        if known:
            writer.scalars(report["step"], report["time"], known)

    @property
    def pending(self) -> int:
        """Number of queued reports that are not yet written."""
        return len(self._queue)

    def report(self, rank: int, report: Mapping[str, Any]) -> None:
        """Queue one report of `rank` for the next `flush`."""
        self._queue.append((rank, report))

    def flush(self, about: Mapping[str, Any]) -> None:
        """Write the queued reports. Raises OSError if that fails. `about` has no effect, because TensorBoard cannot
        store it."""
        while self._queue:
            self.add(*self._queue[0])
            self._queue.popleft()
        for writer in self._writers.values():
            writer.flush()

    def end(self, outcome: str, failure: str) -> None:
        """Write the remaining reports, and close the event files."""
        self.flush({})
        self.close()

    def close(self) -> None:
        """Close the event files."""
        for writer in self._writers.values():
            writer.close()


class _TensorboardEventFile:
    """TensorBoard event file of one rank, open for writing."""

    def __init__(self, folder: Path, began: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        folder.mkdir(exist_ok=True)
        self._file = (folder / f"events.out.tfevents.{time.time_ns()}.{_OURS}").open("wb")
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=began, file_version="brain.Event:2"))

    def scalars(self, step: int, wall_time: float, values: dict[str, float]) -> None:
        summary = self._summary(value=[self._summary.Value(tag=tag, simple_value=v) for tag, v in values.items()])
        self._write(self._event(wall_time=wall_time, step=step, summary=summary))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
