"""Command `dtj ui [JOB]`: show the job's page in a browser; without JOB, print a list of jobs."""

import asyncio
import sys

import click

from ringtrain_operator.errors import OperatorError

from ..jobs.page import serving_page
from .listing import print_jobs
from .session import (
    ClusterAccess,
    ClusterOptions,
    cluster_options,
    optional_job_argument,
    with_client,
    with_session,
)


@click.command()
@optional_job_argument
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on this machine; default: a free one.")
@click.option("--open", "opens", is_flag=True, help="Open the link in a browser.")
@cluster_options
def ui(name: str | None, port: int, opens: bool, cluster: ClusterOptions) -> None:
    """Print the link to the job's page and serve the page until Ctrl-C.

    The link works on this machine, for any program that has it, as long as this command runs. The page also shows later
    attempts. You need the right to pods/portforward, which Kubernetes' roles edit and admin have. Without JOB, the
    command lists jobs. `ringtrain ui` shows the jobs of `dtj local`.
    """
    if name is None:
        print_jobs(with_client(cluster, lambda client: client.backend.select(everywhere=False)))
        click.echo("run dtj ui JOB for the page of one job", err=True)
        return

    async def forward(session: ClusterAccess) -> None:
        try:
            async with serving_page(session, name, port) as link:
                _show_page_link(link, opens)
                await asyncio.Event().wait()
        except OSError as exc:
            raise OperatorError(f"--port {port} cannot be opened: {exc.strerror or exc}") from exc

    try:
        with_session(cluster, forward)
    except KeyboardInterrupt:
        click.echo("the page is no longer forwarded", err=True)
        sys.exit(130)


def _show_page_link(link: str, opens: bool) -> None:
    click.echo(link)
    if opens:
        click.launch(link)
