"""`dtj validate FILE…`: what is wrong with a manifest, before a cluster sees it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from ..errors import OperatorError
from ..local.manifest import load_objects
from ..spec.parse import parse_job
from ..spec.pod_schema import PodSchema, packaged_schema
from ..status.counts import counted
from .failures import problem_lines
from .session import ClusterOptions, Session, cluster_options, with_session

WAY_OUT = "; if your cluster has it, ask the cluster: --server"


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--server", is_flag=True, help="Hold pod templates against the cluster's version of Kubernetes.")
@cluster_options
def validate(files: tuple[Path, ...], server: bool, cluster: ClusterOptions) -> None:
    """Check every job in FILES and name each problem with its field. Exit code 1 if there is one.

    Pod templates are held against Kubernetes' own schema: of the version that this command knows, or of the
    cluster's with --server.
    """
    schema = with_session(cluster, _server_schema) if server else replace(packaged_schema(), way_out=WAY_OUT)
    problems = [line for path in files for line in _problems(path, schema)]
    for line in problems:
        click.echo(line, err=True)
    sys.exit(1 if problems else 0)


def _problems(path: Path, schema: PodSchema) -> Iterator[str]:
    """What is wrong with the jobs of a file; the others are told as valid."""
    try:
        jobs = load_objects(path)
    except OperatorError as exc:
        yield str(exc)
        return
    for obj in jobs:
        try:
            job = parse_job(obj, schema=schema)
        except OperatorError as exc:
            yield from (f"{path}: {line}" for line in problem_lines(exc))
            continue
        size = f"{counted(job.num_workers, 'worker')}, {counted(job.world_size, 'rank')}"
        click.echo(f"{path}: {job.name} is valid: {size}")
        if job.queue and job.spec.run_policy.suspend:
            click.echo(
                f"{path}: {job.name}: runPolicy.suspend is true, so that it waits for you and not in its queue "
                f"{job.queue}; remove it, or set it to false to let the job wait there"
            )


async def _server_schema(session: Session) -> PodSchema:
    from ..cluster.pod_schema import read_pod_schema

    return await read_pod_schema(session.api)
