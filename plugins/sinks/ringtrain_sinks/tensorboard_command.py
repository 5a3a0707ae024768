"""`ringtrain tensorboard`: writes a run's reports as event files and starts TensorBoard on them."""

import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

import click

from ringtrain.shared.processes import die_with_parent
from ringtrain_job.logs.reading import find_log_attempt, follow_log, read_log_from
from ringtrain_sinks.tensorboard import TensorboardSink


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
    files = find_log_attempt(directory, attempt)
    place = to or files.directory / "tensorboard"
    with ExitStack() as stack:
        try:
            events = TensorboardSink(place)
        except OSError as exc:
            raise click.ClickException(f"{place} cannot be written ({exc.strerror}); --to names another") from exc
        stack.callback(events.close)
        if convert:
            events.add_all(read_log_from(files.metrics, 0))
            click.echo(place)
            return
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(place), "--port", str(port)]
        server = subprocess.Popen(command, preexec_fn=die_with_parent(os.getpid()))
        stack.callback(server.terminate)
        with suppress(KeyboardInterrupt):
            events.add_all(follow_log(files.metrics, 0, lambda: files.outcome.exists() or server.poll() is not None))
            server.wait()
    sys.exit(server.returncode or 0)
