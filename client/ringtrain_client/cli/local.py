"""`dtj local FILE`: run a job on this machine."""

import io
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TextIO

import click
from rich.console import Console

from ringtrain_operator.reporting import errors_reported

from ..local.templates import LocalTemplates
from .session import RUNS
from .templates import template_options


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option("--runs", type=click.Path(path_type=Path), default=RUNS, show_default=True, help="Folder of the runs.")
@click.option("--run-dir", "earlier", type=click.Path(path_type=Path), hidden=True)
@click.option("--plain", is_flag=True, help="Print lines instead of a panel. Default if the output is not a terminal.")
@click.option("--ui", is_flag=True, help="Print the link to the job's page first.")
@click.option("--logs", is_flag=True, help="Also print the output of the ranks.")
@template_options
def local(
    manifest: Path, runs: Path, earlier: Path | None, plain: bool, ui: bool, logs: bool, templates: LocalTemplates
) -> None:
    """Run the job in MANIFEST on this machine, its pods as processes.

    The operator's code decides on restarts, deadlines and clean-up. Save a changed MANIFEST while the job runs to
    change replicas, suspend or resume. --runs has a folder with the logs of each run, and a folder "claims" for the
    claims of all jobs. Exit code: 0 if the job succeeded, 1 if it failed, 128 + N after signal N (130 after Ctrl-C).
    """
    if str(manifest) == "-":
        raise click.UsageError(
            "MANIFEST is -, but dtj local reads the manifest again while the job runs; write the manifest into a file"
        )
    # sys.stdout is None if the shell closed it.
    sys.stdout = LosableOutput(sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    received: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt  # end the job's processes as after Ctrl-C

    def stop_code() -> int:
        return 128 + (received or [signal.SIGINT])[0]

    for number in (signal.SIGTERM, signal.SIGHUP):  # SIGHUP: the terminal was closed
        signal.signal(number, stop)
    with errors_reported(f"{manifest}: "):
        try:
            from ..local.run import run_local
            from ..local.summary import print_local_summary

            status, results = run_local(manifest, earlier or runs, plain, logs, ui, templates)
        except KeyboardInterrupt:
            print(f"{manifest}: stopped before any rank was started")
            sys.exit(stop_code())
    print_local_summary(Console(), status, results)
    sys.exit(stop_code() if results.stopped else 0 if status.is_true("Succeeded") else 1)


class LosableOutput(io.TextIOBase):
    """Text output to `stream` that ignores everything from the first error on.

    A job goes on if its terminal is closed, or if the reader of its pipe ends, such as `head`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_lost = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the stream."""
        return self._stream.encoding

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Return the stream's file descriptor."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write `text` unless an earlier write has failed. Return its length."""
        try:
            if not self._is_lost:
                self._stream.write(text)
        except OSError:
            self._lose()
        return len(text)

    def flush(self) -> None:
        """Flush the stream unless an earlier write has failed."""
        try:
            if not self._is_lost:
                self._stream.flush()
        except OSError:
            self._lose()

    def _lose(self) -> None:
        self._is_lost = True
        # The interpreter flushes the stream at its end.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)
