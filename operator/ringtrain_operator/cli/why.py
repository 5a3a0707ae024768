"""`dtj why JOB`: the chain of causes for a job that does not run, or did not end well."""

from __future__ import annotations

import click
from rich.console import Console

from ..local.telling import wrapped
from .session import ClusterOptions, job_argument, local_or_cluster_options, with_client


@click.command()
@job_argument
@local_or_cluster_options
def why(name: str, cluster: ClusterOptions | None) -> None:
    """Say why the job is in the state it is in: its conditions, its pods, the last warnings, the last failure."""
    found = with_client(cluster, lambda client: client.backend.causes(name))
    console = Console()
    for line in found:
        click.echo(wrapped(line, console, " " * (len(line) - len(line.lstrip()) + 2)))
