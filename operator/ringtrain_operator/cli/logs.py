"""`dtj logs JOB`: the merged output of all ranks, or one rank's."""

from __future__ import annotations

import sys

import click

from ringtrain_operator import contract
from ringtrain_operator.errors import OperatorError

from .session import ClusterOptions, Json, Session, cluster_options, job_argument, with_session


class LogsElsewhere(OperatorError):
    """The log that was asked for is not in a pod; the message says where it is."""


@click.command()
@job_argument
@click.option("--rank", type=click.IntRange(min=0), default=None, help="Only the lines of this rank.")
@click.option("--attempt", type=click.IntRange(min=1), default=None, help="Of this attempt; default: the present.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the attempt ends.")
@click.option("--tail", type=click.IntRange(min=0), default=None, help="Begin with the last lines only.")
@cluster_options
def logs(
    name: str, rank: int | None, attempt: int | None, follow: bool, tail: int | None, cluster: ClusterOptions
) -> None:
    """Print what the job's ranks wrote, as its launcher merged it."""

    async def work(session: Session) -> None:
        await _check_attempt(session, name, attempt)
        lines = session.api.pod_log(session.namespace, f"{name}-launcher", follow=follow, tail_lines=tail)
        async for line in lines:
            if rank is None or line.startswith(f"[{rank}]".encode()):
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()

    with_session(cluster, work)


async def _check_attempt(session: Session, name: str, attempt: int | None) -> None:
    """Raises LogsElsewhere unless the launcher of that attempt is there to be read."""
    from ringtrain_operator.cluster.api import JOBS, PODS, NotFound

    job = await session.api.get(JOBS, session.namespace, name)
    present = (job.get("status") or {}).get("attempt")
    try:
        pod = await session.api.get(PODS, session.namespace, f"{name}-launcher")
    except NotFound as exc:
        raise LogsElsewhere(f"{name} has no launcher now; {where_kept(job, attempt or present)}") from exc
    found = int(pod["metadata"].get("labels", {}).get(contract.LABEL_ATTEMPT) or 0)
    if attempt is not None and attempt != found:
        raise LogsElsewhere(f"the launcher of {name} is of attempt {found}; {where_kept(job, attempt)}")


def where_kept(job: Json, attempt: int | None) -> str:
    """Where the log of an attempt lies when its pods are gone."""
    meta = job["metadata"]
    folder = f"{meta['namespace']}/{meta['name']}/{attempt or 1}/"
    claim = ((job["spec"].get("logs") or {}).get("persistentVolumeClaim") or {}).get("claimName")
    if claim:
        return f"attempt {attempt or 1} is kept on the volume of claim {claim}, in {folder}job.log and rank-*.log"
    tail = ((job.get("status") or {}).get("failure") or {}).get("logTail")
    hint = f"; the failed rank's last lines are in its status (dtj why {meta['name']})" if tail else ""
    return f"its logs went with its pod, because spec.logs names no claim{hint}"
