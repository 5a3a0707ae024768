"""`dtj suspend JOB…` and `dtj resume JOB…`."""

from __future__ import annotations

import click

from ..errors import OperatorError
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
        from ringtrain_operator.cluster.api.resources import JOBS

        from .following import ENDED, state_of

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
