"""`dtj render FILE`: the objects that the operator would create."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import yaml

from .. import build, contract
from ..spec.job import Job
from ..spec.parse import parse_job
from .failures import errors_reported

# A manifest has no uid before an API server gives it one.
PLACEHOLDER_UID = "00000000-0000-0000-0000-000000000000"


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path))
def render(manifest: Path) -> None:
    """Print what the operator would create for the job in MANIFEST, as YAML. Credentials are left out."""
    from ..local.manifest import load_objects

    with errors_reported(f"{manifest}: "):
        jobs = [parse_job(obj) for obj in load_objects(manifest)]
    objects = [obj for job in jobs for obj in rendered(job)]
    click.echo(yaml.safe_dump_all(objects, sort_keys=False), nl=False)


def rendered(job: Job) -> list[dict[str, Any]]:
    """The objects of the job's first attempt. The Secret has no values, and the launcher no token: they are
    made anew for every job."""
    job = replace(job, uid=job.uid or PLACEHOLDER_UID)
    secret = build.build_secret(job, dict.fromkeys(contract.SECRET_KEYS, b""))
    incarnation = build.Incarnation(1) if job.spec.elastic is not None else None
    data = job.spec.data_workers
    return [
        secret,
        build.build_service(job),
        build.build_service_account(job),
        build.build_network_policy(job),
        build.build_launcher_pod(job, 1, settings=build.Settings(token=str)),
        *(build.build_worker_pod(job, 1, index, "", incarnation) for index in range(job.num_workers)),
        *(build.build_data_worker_pod(job, index) for index in range(data.replicas if data is not None else 0)),
        *([build.build_evaluator_pod(job, job.num_workers)] if job.spec.evaluator is not None else []),
    ]
