"""Command `dtj render FILE`: print the objects that the operator would create."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ringtrain_operator import build, contract
from ringtrain_operator.command import operator_settings_of
from ringtrain_operator.errors import ManifestUnreadable
from ringtrain_operator.reporting import errors_reported
from ringtrain_operator.spec.job import Job
from ringtrain_operator.spec.template import containers_of, shape_problems

from ..local.documents import read_documents, write_documents
from ..local.references import check_job
from ..local.templates import LocalTemplates
from .templates import template_options

# A manifest has no uid before an API server gives it one.
PLACEHOLDER_UID = "00000000-0000-0000-0000-000000000000"
# An argument that every installation's operator has.
_OF_OPERATORS = "--agent-image="
_DEPLOYMENT: dict[str, Any] = {"spec": {"template": {"spec": {"containers": [{"args": [str]}]}}}}


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option(
    "--installation",
    type=click.Path(path_type=Path),
    help="File with the operator's Deployment, from `helm template` or `kubectl get "
    "deployment --output=yaml`. Default: the chart's default settings.",
)
@template_options
def render(manifest: Path, installation: Path | None, templates: LocalTemplates) -> None:
    """Print the objects that the operator would create for MANIFEST, as YAML without credentials."""
    from ..local.manifest import job_label, read_merged_jobs

    with errors_reported(f"{manifest}: "):
        documents, found = read_merged_jobs(manifest, templates)
    jobs = []
    for obj in found:
        with errors_reported(f"{manifest}: {job_label(obj, found)}"):
            jobs.append(check_job(obj, documents)[0])
    with errors_reported():
        settings = operator_settings_of(_installation_arguments(installation) if installation is not None else ())
    objects = [obj for job in jobs for obj in rendered(job, settings)]
    click.echo(write_documents(objects), nl=False)


def rendered(job: Job, settings: build.BuildSettings | None = None) -> list[dict[str, Any]]:
    """Return the Kubernetes objects that the operator would create for the job's first attempt.

    The Secret has no values and the launcher no token, because every job gets new ones.
    """
    job = replace(job, uid=job.uid or PLACEHOLDER_UID)
    settings = replace(settings or build.BuildSettings(), token=str)
    secret = build.build_secret(job, dict.fromkeys(contract.SECRET_KEYS, b""))
    incarnation = build.PodIncarnation(1) if job.spec.elastic is not None else None
    data = job.spec.data_workers
    return [
        secret,
        build.build_service(job, settings),
        build.build_service_account(job, settings),
        build.build_network_policy(job, settings),
        build.build_launcher_pod(job, 1, settings=settings),
        *(
            build.build_worker_pod(job, 1, index, "", incarnation, settings=settings)
            for index in range(job.num_workers)
        ),
        *(build.build_data_worker_pod(job, i, settings=settings) for i in range(data.replicas if data else 0)),
        *([build.build_evaluator_pod(job, job.num_workers, settings)] if job.spec.evaluator is not None else []),
    ]


def _installation_arguments(path: Path) -> Sequence[str]:
    """Return the operator's arguments from the Deployment in the file `path`. Raises ManifestUnreadable if the file
    has no such Deployment."""
    for found in read_documents(path):
        if not isinstance(found, Mapping) or found.get("kind") != "Deployment":
            continue
        if problems := shape_problems(found, "", _DEPLOYMENT):
            raise ManifestUnreadable(f"{path}: Deployment: {problems[0]}")
        for container in containers_of((found.get("spec") or {}).get("template") or {}):
            arguments = [str(word) for word in container.get("args") or ()]
            if any(word.startswith(_OF_OPERATORS) for word in arguments):
                return arguments
    raise ManifestUnreadable(
        f"{path}: has no Deployment of the operator (a container with {_OF_OPERATORS}…); expected the output of "
        "`helm template` or `kubectl get deployment --output=yaml`"
    )
