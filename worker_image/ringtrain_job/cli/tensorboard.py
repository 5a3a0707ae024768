"""`ringtrain tensorboard`: a run's reports as TensorBoard's event files, and TensorBoard on them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click

from ringtrain.shared.processes import die_with_parent
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.reading import LogMissing, find_attempt, follow, read_from
from ringtrain_job.logs.reports import BadReport, parse_report

# A run of TensorBoard for each rank, up to so many; those of a larger world show the first ranks.
MOST_RANKS: Final = 64
_OURS: Final = "ringtrain"


@click.command()
@click.argument("directory", default=Path("runs"), type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--attempt", type=click.IntRange(min=1), default=None, help="This attempt; default: the newest.")
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to [default: tensorboard/ beside the attempt's logs].",
)
@click.option("--port", type=click.IntRange(1, 65535), default=6006, show_default=True, help="TensorBoard's port.")
@click.option("--convert", is_flag=True, help="Write event files of what there is, and start no TensorBoard.")
def tensorboard(directory: Path, attempt: int | None, to: Path | None, port: int, convert: bool) -> None:
    """Show the newest run in DIRECTORY, or below it, in TensorBoard [default: runs].

    Each rank is a run with its loss, the metrics that it reports, its epoch and its samples per second. Reports
    that come while TensorBoard runs are shown as they come; Ctrl-C ends it. Needs pip install
    'ringtrain[tensorboard]'.
    """
    if find_spec("tensorboard") is None:
        raise click.ClickException("TensorBoard is not installed here: pip install 'ringtrain[tensorboard]'")
    try:
        files = find_attempt(directory, attempt)
    except LogMissing as exc:
        raise click.ClickException(str(exc)) from exc
    place = to or files.directory / "tensorboard"
    with ExitStack() as stack:
        try:
            events = EventFiles(place)
        except OSError as exc:
            raise click.ClickException(f"{place} cannot be written ({exc.strerror}); --to names another") from exc
        stack.callback(events.close)
        if convert:
            events.add_all(read_from(files.metrics, 0))
            click.echo(place)
            return
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(place), "--port", str(port)]
        server = subprocess.Popen(command, preexec_fn=die_with_parent(os.getpid()))
        stack.callback(server.terminate)
        with suppress(KeyboardInterrupt):
            events.add_all(follow(files.metrics, 0, _is_over(files, server)))
            server.wait()
    sys.exit(server.returncode or 0)


def _is_over(files: AttemptFiles, server: "subprocess.Popen[bytes]") -> Callable[[], bool]:
    return lambda: files.outcome.exists() or server.poll() is not None


class EventFiles:
    """Event files below a directory, one for each rank. What an earlier call has left of ours is replaced."""

    def __init__(self, place: Path) -> None:
        """Raises OSError if `place` can't be written."""
        place.mkdir(parents=True, exist_ok=True)
        for path in place.glob(f"rank-*/events.out.tfevents.*.{_OURS}"):
            path.unlink()
        self._place = place
        self._writers: dict[int, _EventFile] = {}
        self._last: dict[int, float] = {}

    def add_all(self, chunks: Iterator[bytes]) -> None:
        """Write what the chunks of a `metrics.jsonl` hold; a line that is no report is left out."""
        rest = b""
        for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                with suppress(BadReport, KeyError, TypeError, ValueError):
                    report = parse_report(line)
                    self.add(int(json.loads(line)["rank"]), report)
            for writer in self._writers.values():
                writer.flush()

    def add(self, rank: int, report: dict[str, Any]) -> None:
        """Write one report."""
        if rank >= MOST_RANKS or report.get("startedFrom") is not None:
            return
        writer = self._writers.get(rank)
        if writer is None:
            writer = self._writers[rank] = _EventFile(self._place / f"rank-{rank:04d}", report["time"])
        values = {"loss": report.get("loss"), "epoch": report.get("epoch"), **(report.get("metrics") or {})}
        seconds = report["time"] - self._last.get(rank, report["time"])
        self._last[rank] = report["time"]
        if seconds > 0 and report.get("samples") is not None:
            values[f"{report.get('unit') or 'samples'}_per_second"] = report["samples"] / seconds
        values |= report.get("notFinite") or {}
        known = {name: float(value) for name, value in values.items() if value is not None}
        if known:
            writer.scalars(report["step"], report["time"], known)

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()


class _EventFile:
    """One event file, by TensorBoard's own record writer."""

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
