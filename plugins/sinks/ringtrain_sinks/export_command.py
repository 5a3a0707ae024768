"""`ringtrain export`: a run's reports to MLflow, W&B or TensorBoard."""

from pathlib import Path

import click

from ringtrain_job.cli.main import log_to_stderr
from ringtrain_job.logs.reading import find_log_attempt
from ringtrain_sinks.base import SINKS, check_sink, open_sink
from ringtrain_sinks.feed import SinkFeed, is_sink_attempt_ended, sink_attempt_of


@click.command()
@click.argument("directory", default=Path("runs"), type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--to", "name", required=True, type=click.Choice(sorted(SINKS)), help="Where to.")
@click.option("--attempt", type=click.IntRange(min=1), default=None, help="This attempt; default: the newest.")
@click.option("--follow", is_flag=True, help="Go on until the attempt has ended.")
@click.option("--ranks", type=click.IntRange(min=0), default=0, hidden=True)
def export(directory: Path, name: str, attempt: int | None, follow: bool, ranks: int) -> None:
    """Send the newest run in DIRECTORY, or below it, to another tool [default: runs].

    `mlflow`: the server that MLFLOW_TRACKING_URI names. `wandb`: offline files in the attempt's log directory, for
    `wandb sync`. `tensorboard`: event files there. Maturity: Beta. Each needs its extra, such as pip install
    'ringtrain[mlflow]'.
    """
    log_to_stderr("export")
    check_sink(name, "--to")
    files = find_log_attempt(directory, attempt)
    sink = open_sink(name, sink_attempt_of(files, ranks))
    problem = SinkFeed(name, sink, files).run(lambda: not follow or is_sink_attempt_ended(files))
    if problem:
        raise click.ClickException(problem)
