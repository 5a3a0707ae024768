"""Commands `dtj delete JOB…`, `dtj suspend JOB…` and `dtj resume JOB…`."""

from collections.abc import Awaitable, Callable

import click

from ringtrain_operator.cluster.api.errors import NotFound
from ringtrain_operator.errors import OperatorError

from ..jobs.errors import JobEnded
from ..jobs.runs import AsyncClient, AsyncRun
from .session import ClusterOptions, cluster_options, complete_job, missing_job_named, with_client


def _jobs_command(action: Callable[[tuple[str, ...], ClusterOptions], None]) -> click.Command:
    """Return a click command that calls `action` with the job names on its command line and the selected cluster."""
    names = click.argument("names", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_job)
    return click.command()(names(cluster_options(action)))


@_jobs_command
def delete(names: tuple[str, ...], cluster: ClusterOptions) -> None:
    """Delete jobs and their pods. Volumes stay."""
    _change_each_job(cluster, names, AsyncRun.delete, "deleted")


@_jobs_command
def suspend(names: tuple[str, ...], cluster: ClusterOptions) -> None:
    """Delete the pods of jobs. `dtj resume` creates pods again, which continue from the checkpoints."""
    _change_each_job(cluster, names, AsyncRun.suspend, "suspended")


@_jobs_command
def resume(names: tuple[str, ...], cluster: ClusterOptions) -> None:
    """Start suspended jobs again."""
    _change_each_job(cluster, names, AsyncRun.resume, "resumed")


def _change_each_job(
    cluster: ClusterOptions, names: tuple[str, ...], change: Callable[[AsyncRun], Awaitable[None]], done: str
) -> None:
    """Call `change` for each job; print the name of each changed job, followed by `done`.

    Raises one OperatorError, after all calls, that names the jobs that do not exist or have ended.
    """

    async def work(client: AsyncClient) -> None:
        failures = []
        for name in names:
            try:
                run = await client.of(name)
                with missing_job_named(run.namespace):
                    await change(run)
            except (JobEnded, NotFound) as exc:
                failures.append(str(exc))
                continue
            click.echo(f"{run.namespace}/{run.name} {done}")
        if failures:
            raise OperatorError("\n".join(failures))

    with_client(cluster, work)
