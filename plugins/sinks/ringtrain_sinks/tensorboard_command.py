"""The command `ringtrain tensorboard`, which writes a run's reports as event files and starts TensorBoard."""

import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

import click

from ringtrain.shared.processes import die_with_parent
from ringtrain_job.cli.runs import find_attempt, run_options
from ringtrain_job.logs.reading import follow_log
from ringtrain_sinks.tensorboard import TensorboardSink


@click.command()
@run_options
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for event files [default: tensorboard/ in the log folder].",
)
@click.option("--port", type=click.IntRange(1, 65535), default=6006, show_default=True, help="TensorBoard's port.")
def tensorboard(run: str | None, runs: Path, attempt: int | None, to: Path | None, port: int) -> None:
    """Show a run (the newest, or RUN) in TensorBoard until Ctrl-C.

    RUN is a name that `ringtrain list` prints, or a folder. Each rank is a run of TensorBoard with its loss, metrics,
    epoch and samples per second. New reports are shown while the run goes on. `ringtrain export --to tensorboard`
    writes the event files alone. Needs pip install 'ringtrain[tensorboard]'.
    """
    if find_spec("tensorboard") is None:
        raise click.ClickException("TensorBoard is not installed: pip install 'ringtrain[tensorboard]'")
    files = find_attempt(run, runs, attempt)
    place = to or files.directory / "tensorboard"
    with ExitStack() as stack:
        try:
            events = TensorboardSink(place)
        except OSError as exc:
            raise click.ClickException(
                f"cannot write to {place} ({exc.strerror}); choose another folder with --to"
            ) from exc
        stack.callback(events.close)
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(place), "--port", str(port)]
        server = subprocess.Popen(command, preexec_fn=die_with_parent(os.getpid()))
        stack.callback(server.terminate)
        with suppress(KeyboardInterrupt):
            events.add_all(follow_log(files.metrics, 0, lambda: files.outcome.exists() or server.poll() is not None))
            server.wait()
    sys.exit(server.returncode or 0)
