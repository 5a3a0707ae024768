"""`dtj submit FILE…`: create jobs on a cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..cluster.api.errors import AlreadyExists, Forbidden, NotFound
from ..cluster.api.resources import JOBS
from ..local.manifest import load_objects
from ..spec.parse import parse_job
from ..spec.pod_schema import PodSchema, packaged_schema
from .failures import errors_reported
from .session import ClusterOptions, Json, Session, cluster_options, with_session


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--wait", is_flag=True, help="Return when the jobs have ended; exit code 1 if one has failed.")
@cluster_options
def submit(files: tuple[Path, ...], wait: bool, cluster: ClusterOptions) -> None:
    """Check the jobs in FILES and create them."""
    found: list[tuple[Path, Json]] = []
    for path in files:
        with errors_reported(f"{path}: "):
            for obj in load_objects(path):
                parse_job(obj, templates=False)
                found.append((path, obj))
    schema = with_session(cluster, _schema_of_cluster)
    for path, obj in found:
        with errors_reported(f"{path}: "):
            parse_job(obj, schema=schema)
    made = with_session(cluster, lambda session: _create(session, [obj for _, obj in found]))
    for namespace, name in made:
        click.echo(f"{namespace}/{name} created; follow it with: dtj logs -n {namespace} {name} --follow")
    if wait and with_session(cluster, lambda session: _wait(session, made)):
        sys.exit(1)


async def _schema_of_cluster(session: Session) -> PodSchema:
    """The cluster's schema of pod templates; this package's where the cluster does not show it."""
    from ..cluster.pod_schema import read_pod_schema

    try:
        return await read_pod_schema(session.api)
    except (Forbidden, NotFound):
        return packaged_schema()


async def _create(session: Session, jobs: list[Json]) -> list[tuple[str, str]]:
    made = []
    for job in jobs:
        name = job["metadata"].get("name") or job["metadata"].get("generateName", "")
        namespace = job["metadata"].get("namespace") or session.namespace
        try:
            created = await session.api.create(JOBS, namespace, job)
        except AlreadyExists as exc:
            raise AlreadyExists(
                f"{namespace}/{name} exists already; delete it (dtj delete {name}) or give this one another name"
            ) from exc
        except NotFound as exc:
            raise NotFound(f"{exc}: is the operator installed, and the namespace {namespace} there?") from exc
        made.append((namespace, created["metadata"]["name"]))
    return made


async def _wait(session: Session, made: list[tuple[str, str]]) -> bool:
    """Whether one of the jobs failed, known once all have ended."""
    from ..client.following import until_ended

    ends = [await until_ended(session.api, namespace, name) for namespace, name in made]
    for (namespace, name), end in zip(made, ends, strict=True):
        click.echo(f"{namespace}/{name}: {end.state}" + (f": {end.why}" if end.why else ""))
    return any(end.state != "Succeeded" for end in ends)
