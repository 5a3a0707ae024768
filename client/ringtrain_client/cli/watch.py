"""Command `dtj watch JOB`: the panel of `dtj local` for a job until its end."""

import asyncio
import sys
from contextlib import aclosing
from dataclasses import replace

import click
from rich.console import Console

from ringtrain_operator.cluster.api.errors import NotFound
from ringtrain_operator.observe.model import Observed
from ringtrain_operator.status.model import JobStatus, parse_status

from ..jobs.runs import AsyncClient
from ..local.driver import JobView, LocalDisplay
from ..local.panel import PanelDisplay, job_display
from ..local.summary import LocalRunResults, print_local_summary
from .session import ClusterOptions, job_argument, local_or_cluster_options, with_client

# Interval of the panel's updates of the time since the start and each rank's state.
_REDRAW_S = 2.0


@click.command()
@job_argument
@click.option("--plain", is_flag=True, help="Print lines instead of a panel. Default if the output is not a terminal.")
@local_or_cluster_options
def watch(name: str, plain: bool, cluster: ClusterOptions | None) -> None:
    """Show a job's state and progress until it has ended.

    Ctrl-C ends the display only; the job continues. Exit code: 0 if the job succeeded, 1 if it failed.
    The panel has each rank's state if you have the right to pods/portforward.
    """

    async def work(client: AsyncClient) -> JobStatus:
        with job_display(plain) as display:
            return await _show_until_end(client, name, display)

    try:
        status = with_client(cluster, work)
    except KeyboardInterrupt:
        sys.exit(130)
    print_local_summary(Console(), status, LocalRunResults(None, {}))
    sys.exit(0 if status.is_true("Succeeded") else 1)


async def _show_until_end(client: AsyncClient, name: str, display: LocalDisplay) -> JobStatus:
    """Return the final status. Raises NotFound if the job does not exist or is deleted."""
    shown: list[JobView] = []
    redrawing = asyncio.create_task(_redraw(client, display, shown))
    try:
        async with aclosing(client.backend.changes(name)) as changes:
            async for job in changes:
                status = parse_status(job.get("status"))
                observed = shown[0].observed if shown else Observed()
                shown[:] = [JobView(job, status, observed, ())]
                display.show(shown[0])
                if status.finished:
                    return status
    finally:
        redrawing.cancel()
    raise NotFound(f"job {name} {'was deleted' if shown else 'does not exist; dtj list shows the existing jobs'}")


async def _redraw(client: AsyncClient, display: LocalDisplay, shown: list[JobView]) -> None:
    """Show the newest view repeatedly. On a terminal, also read each rank's state from the launcher and show it."""
    while True:
        await asyncio.sleep(_REDRAW_S)
        if not shown:
            continue
        if isinstance(display, PanelDisplay):
            report = await client.backend.launcher_report(shown[0].job["metadata"]["name"])
            shown[:] = [replace(shown[0], observed=Observed(launcher=report))]
        display.show(shown[0])
