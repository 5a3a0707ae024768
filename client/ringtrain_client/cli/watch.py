"""Command `dtj watch JOB`: show the job's state in the panel of `dtj local` until the job ends."""

import asyncio
import sys
from contextlib import aclosing
from dataclasses import replace

import click
from rich.console import Console

from ringtrain_operator.cluster.api.errors import NotFound
from ringtrain_operator.observe.model import Observed
from ringtrain_operator.status.model import JobStatus, parse_status

from ..jobs.errors import DriverLost
from ..jobs.following import ENDED, state_of
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

    Ctrl-C ends the display only; the job continues. Exit code: 0 if the job succeeded, 1 if it failed or its
    spec was rejected.
    The panel has each rank's state if you have the right to pods/portforward.
    """

    async def work(client: AsyncClient) -> JobStatus:
        with job_display(plain) as display:
            try:
                return await _show_until_end(client, name, display)
            except DriverLost:  # the stored status is that of the driver's last write
                return parse_status((await client.backend.get(name)).get("status"))

    status = with_client(cluster, work)
    if status.state == "Rejected":  # the display has shown why; only a user can change that
        sys.exit(1)
    print_local_summary(Console(), status, LocalRunResults(None, {}))
    sys.exit(0 if status.is_true("Succeeded") else 1)


async def _show_until_end(client: AsyncClient, name: str, display: LocalDisplay) -> JobStatus:
    """Show the job on `display` until it ends or is rejected, and return its last status. Raises NotFound if the job
    does not exist or is deleted."""
    shown: list[JobView] = []
    redrawing = asyncio.create_task(_redraw(client, display, shown))
    try:
        async with aclosing(client.backend.changes(name)) as changes:
            async for job in changes:
                status = parse_status(job.get("status"))
                observed = shown[0].observed if shown else Observed()
                shown[:] = [JobView(job, status, observed, ())]
                display.show(shown[0])
                if status.finished or state_of(job) in (*ENDED, "Rejected"):
                    return status
    finally:
        redrawing.cancel()
    raise NotFound(f"job {name} {'was deleted' if shown else 'does not exist; dtj list shows the existing jobs'}")


async def _redraw(client: AsyncClient, display: LocalDisplay, shown: list[JobView]) -> None:
    """Show the view in `shown`, a list of one view or none, repeatedly until this task is cancelled.

    On a terminal, first add each rank's state to the view; the state is read from the launcher.
    """
    while True:
        await asyncio.sleep(_REDRAW_S)
        if not shown:
            continue
        if isinstance(display, PanelDisplay):
            report = await client.backend.launcher_report(shown[0].job["metadata"]["name"])
            shown[:] = [replace(shown[0], observed=Observed(launcher=report))]
        display.show(shown[0])
