"""The command `ringtrain export`, which sends a run's reports to MLflow, W&B or TensorBoard."""

from pathlib import Path

import click

from ringtrain_job.cli.main import log_to_stderr
from ringtrain_job.cli.runs import find_attempt, run_options
from ringtrain_job.logs.reports import stored_reports
from ringtrain_sinks.base import SINKS, check_sink, open_sink
from ringtrain_sinks.feed import SinkFeed, is_sink_attempt_ended, sink_attempt_of


@click.command()
@run_options
@click.option("--to", "name", required=True, type=click.Choice(sorted(SINKS)), help="Tool that receives the run.")
@click.option("--follow", "-f", is_flag=True, help="Also send new reports, until the attempt ends.")
@click.option("--ranks", type=click.IntRange(min=0), default=0, hidden=True)
def export(run: str | None, runs: Path, attempt: int | None, name: str, follow: bool, ranks: int) -> None:
    """Send a run (the newest, or RUN) to MLflow, W&B or TensorBoard.

    RUN is a name that `ringtrain list` prints, or a folder. `mlflow` sends it to the server that MLFLOW_TRACKING_URI
    names. `wandb` writes offline files next to the attempt's logs, for `wandb sync`. `tensorboard` writes event files
    there, too. Maturity: Beta. Each tool needs an extra, such as pip install 'ringtrain[mlflow]'.
    """
    log_to_stderr("export")
    check_sink(name, "--to")
    files = find_attempt(run, runs, attempt)
    sink = open_sink(name, sink_attempt_of(files, ranks))
    problem = SinkFeed(name, sink, files).run(lambda: not follow or is_sink_attempt_ended(files))
    if problem:
        raise click.ClickException(problem)
    if next(stored_reports(files.metrics), None) is None:
        click.echo(f"{files.directory} has no reports, so no curves were sent", err=True)
    written = files.directory / name
    click.echo(written if written.is_dir() else f"sent {files.directory} to {name}")
