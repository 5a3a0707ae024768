"""`dtj delete JOB…`, `dtj suspend JOB…` and `dtj resume JOB…`."""

from __future__ import annotations

from collections.abc import Callable

import click

from ..cluster.api.resources import JOBS
from ..errors import OperatorError
from .session import ClusterOptions, Session, cluster_options, complete_job, with_session


def _jobs_command(action: Callable[[tuple[str, ...], ClusterOptions], None]) -> click.Command:
    """A command on the jobs JOB... of a cluster."""
    names = click.argument("names", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_job)
    return click.command()(names(cluster_options(action)))


@_jobs_command
def delete(names: tuple[str, ...], cluster: ClusterOptions) -> None:
    """Delete the jobs, and with them their pods; volumes stay."""

    async def work(session: Session) -> None:
        for name in names:
            await session.api.delete(JOBS, session.namespace, name)
            click.echo(f"{session.namespace}/{name} deleted")

    with_session(cluster, work)


@_jobs_command
def suspend(names: tuple[str, ...], cluster: ClusterOptions) -> None:
    """Take the jobs' pods away until they are resumed; they go on from their checkpoints."""
    _set_suspend(cluster, names, True)


@_jobs_command
def resume(names: tuple[str, ...], cluster: ClusterOptions) -> None:
    """Let suspended jobs run again."""
    _set_suspend(cluster, names, False)


def _set_suspend(cluster: ClusterOptions, names: tuple[str, ...], suspended: bool) -> None:
    async def work(session: Session) -> None:
        from ..client.following import ENDED, state_of

        ended = []
        for name in names:
            state = state_of(await session.api.get(JOBS, session.namespace, name))
            if state in ENDED:
                ended.append(f"{session.namespace}/{name} has ended ({state}); submit it anew to run it again")
                continue
            patch = {"spec": {"runPolicy": {"suspend": suspended}}}
            await session.api.patch(JOBS, session.namespace, name, patch)
            click.echo(f"{session.namespace}/{name} {'suspended' if suspended else 'resumed'}")
        if ended:
            raise OperatorError("\n".join(ended))

    with_session(cluster, work)
