"""`dtj delete JOB…`, `dtj suspend JOB…` and `dtj resume JOB…`."""

from collections.abc import Awaitable, Callable

import click

from ringtrain_operator.errors import OperatorError

from ..jobs.errors import JobEnded
from ..jobs.runs import AsyncClient, AsyncRun
from .session import ClusterOptions, cluster_options, complete_job, with_client


def _jobs_command(action: Callable[[tuple[str, ...], ClusterOptions], None]) -> click.Command:
    """A command on the jobs JOB... of a cluster."""
    names = click.argument("names", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_job)
    return click.command()(names(cluster_options(action)))


@_jobs_command
def delete(names: tuple[str, ...], cluster: ClusterOptions) -> None:
    """Delete the jobs, and with them their pods; volumes stay."""
    _change_each_job(cluster, names, AsyncRun.delete, "deleted")


@_jobs_command
def suspend(names: tuple[str, ...], cluster: ClusterOptions) -> None:
    """Take the jobs' pods away until they are resumed; they go on from their checkpoints."""
    _change_each_job(cluster, names, AsyncRun.suspend, "suspended")


@_jobs_command
def resume(names: tuple[str, ...], cluster: ClusterOptions) -> None:
    """Let suspended jobs run again."""
    _change_each_job(cluster, names, AsyncRun.resume, "resumed")


def _change_each_job(
    cluster: ClusterOptions, names: tuple[str, ...], change: Callable[[AsyncRun], Awaitable[None]], done: str
) -> None:
    """Change each job and say so. Those that have ended are told at the end; any other refusal ends it."""

    async def work(client: AsyncClient) -> None:
        ended = []
        for name in names:
            try:
                run = await client.of(name)
                await change(run)
            except JobEnded as exc:
                ended.append(str(exc))
                continue
            click.echo(f"{run.namespace}/{run.name} {done}")
        if ended:
            raise OperatorError("\n".join(ended))

    with_client(cluster, work)
