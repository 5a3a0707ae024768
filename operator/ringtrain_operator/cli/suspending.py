"""`dtj suspend JOB…` and `dtj resume JOB…`."""

from __future__ import annotations

import click

from .session import ClusterOptions, Session, cluster_options, complete_job, with_session


@click.command()
@click.argument("names", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_job)
@cluster_options
def suspend(names: tuple[str, ...], cluster: ClusterOptions) -> None:
    """Take the jobs' pods away until they are resumed; they go on from their checkpoints."""
    _set(cluster, names, True)


@click.command()
@click.argument("names", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_job)
@cluster_options
def resume(names: tuple[str, ...], cluster: ClusterOptions) -> None:
    """Let suspended jobs run again."""
    _set(cluster, names, False)


def _set(cluster: ClusterOptions, names: tuple[str, ...], suspended: bool) -> None:
    async def work(session: Session) -> None:
        from ringtrain_operator.cluster.api import JOBS

        for name in names:
            patch = {"spec": {"runPolicy": {"suspend": suspended}}}
            await session.api.patch(JOBS, session.namespace, name, patch)
            click.echo(f"{session.namespace}/{name} {'suspended' if suspended else 'resumed'}")

    with_session(cluster, work)
