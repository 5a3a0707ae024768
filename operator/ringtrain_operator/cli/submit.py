"""`dtj submit FILE…`: create jobs on a cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .failures import told
from .session import ClusterOptions, Json, Session, cluster_options, with_session


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--wait", is_flag=True, help="Return when the jobs have ended; exit code 1 if one has failed.")
@cluster_options
def submit(files: tuple[Path, ...], wait: bool, cluster: ClusterOptions) -> None:
    """Check the jobs in FILES and create them."""
    from ..local.manifest import load_objects
    from ..spec import parse_job

    jobs: list[Json] = []
    for path in files:
        with told(f"{path}: "):
            for obj in load_objects(path):
                parse_job(obj)
                jobs.append(obj)
    made = with_session(cluster, lambda session: _create(session, jobs))
    for namespace, name in made:
        click.echo(f"{namespace}/{name} created; follow it with: dtj logs -n {namespace} {name} --follow")
    if wait and with_session(cluster, lambda session: _wait(session, made)):
        sys.exit(1)


async def _create(session: Session, jobs: list[Json]) -> list[tuple[str, str]]:
    from ringtrain_operator.cluster.api import JOBS, AlreadyExists, NotFound

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
    from .following import until_ended

    states = [await until_ended(session.api, namespace, name) for namespace, name in made]
    for (namespace, name), state in zip(made, states, strict=True):
        click.echo(f"{namespace}/{name}: {state}")
    return any(state != "Succeeded" for state in states)
