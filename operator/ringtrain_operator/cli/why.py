"""`dtj why JOB`: the chain of causes for a job that does not run, or did not end well."""

from __future__ import annotations

import click
from rich.console import Console

from ..client.causes import causes_of, explain
from ..local.kept import newest_run
from ..local.telling import wrapped
from .failures import errors_reported
from .session import RUNS, ClusterOptions, job_argument, local_or_cluster_options, with_session


@click.command()
@job_argument
@local_or_cluster_options
def why(name: str, cluster: ClusterOptions | None) -> None:
    """Say why the job is in the state it is in: its conditions, its pods, the last warnings, the last failure."""
    if cluster is None:
        with errors_reported():
            found = list(explain(newest_run(RUNS, name).job, [], []))
    else:
        found = with_session(cluster, lambda session: causes_of(session, name))
    console = Console()
    for line in found:
        click.echo(wrapped(line, console, " " * (len(line) - len(line.lstrip()) + 2)))
