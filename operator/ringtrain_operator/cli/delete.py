"""`dtj delete JOB…`."""

from __future__ import annotations

import click

from .session import ClusterOptions, Session, cluster_options, complete_job, with_session


@click.command()
@click.argument("names", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_job)
@cluster_options
def delete(names: tuple[str, ...], cluster: ClusterOptions) -> None:
    """Delete the jobs, and with them their pods; volumes stay."""

    async def work(session: Session) -> None:
        from ringtrain_operator.cluster.api.resources import JOBS

        for name in names:
            await session.api.delete(JOBS, session.namespace, name)
            click.echo(f"{session.namespace}/{name} deleted")

    with_session(cluster, work)
