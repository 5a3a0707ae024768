"""Command `dtj validate FILE…`: find the problems of manifests without a cluster."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from ringtrain_operator.errors import ManifestUnreadable, OperatorError, counted
from ringtrain_operator.reporting import problem_lines
from ringtrain_operator.spec.job import Job
from ringtrain_operator.spec.pod_schema import PodSchema, packaged_pod_spec_schema
from ringtrain_operator.spec.training_container import describe_training_container

from ..local.documents import read_documents
from ..local.manifest import is_job, job_label, jobs_among, namespace_of
from ..local.references import check_job, file_problems
from ..local.templates import LocalTemplates
from .session import ClusterAccess, ClusterOptions, cluster_options, with_session
from .templates import template_files, templates_of

WAY_OUT = "; if your cluster has it, check with --server"


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--server",
    is_flag=True,
    help="Check pod templates against the cluster's Kubernetes version. A template that is "
    "not in FILES is read from the cluster.",
)
@template_files
@cluster_options
def validate(files: tuple[Path, ...], server: bool, of_templates: tuple[Path, ...], cluster: ClusterOptions) -> None:
    """Check all jobs and templates in FILES and name each problem by its field. The exit code is 1 if there is a
    problem.

    The ConfigMaps and Secrets of a file are checked with the jobs that name them. Pod templates are checked by
    Kubernetes' schema and by the API server's rules on values. The schema is built into this command, for one version
    of Kubernetes; with --server the cluster's schema is used.
    """
    schema = with_session(cluster, _server_schema) if server else replace(packaged_pod_spec_schema(), way_out=WAY_OUT)
    templates = templates_of(of_templates, cluster if server else None)
    problems = [line for path in files for line in _manifest_problems(path, schema, templates)]
    for line in dict.fromkeys(problems):  # two jobs of a file may name one ConfigMap
        click.echo(line, err=True)
    sys.exit(1 if problems else 0)


def _manifest_problems(path: Path, schema: PodSchema, templates: LocalTemplates) -> Iterator[str]:
    """Yield the problems of the jobs and templates in a file; print a line for each that is valid."""
    try:
        documents = read_documents(path)
        found = templates.add(documents)
        jobs = jobs_among(documents, path) if not found else [doc for doc in documents if is_job(doc)]
    except OperatorError as exc:
        about = "" if isinstance(exc, ManifestUnreadable) else f"{path}: "  # its message already names the file
        yield from (f"{about}{line}" for line in problem_lines(exc))
        return
    of_file = file_problems(documents, map(namespace_of, jobs), schema)
    yield from (f"{path}: {problem}" for problem in of_file)
    for template in found:
        if not any(problem.path.startswith(f"{template}: ") for problem in of_file):
            click.echo(f"{path}: {template} is a valid job template")
    for obj in jobs:
        try:
            job, hints = check_job(templates.merged_with_template(obj), documents, schema)
        except OperatorError as exc:
            yield from (f"{path}: {job_label(obj, jobs)}{line}" for line in problem_lines(exc))
            continue
        if of_file:
            continue
        _print_valid(path, job)
        for text in hints:
            click.echo(f"{path}: {job.name}: {text}")


def _print_valid(path: Path, job: Job) -> None:
    size = f"{counted(job.num_workers, 'worker')}, {counted(job.world_size, 'rank')}"
    click.echo(f"{path}: {job.name} is valid: {size}")
    if trains := describe_training_container(job.spec.worker.template):
        click.echo(f"{path}: {job.name}: {trains}")
    if job.queue and job.spec.run_policy.suspend:
        click.echo(
            f"{path}: {job.name}: runPolicy.suspend is true, so the job does not enter its queue {job.queue} until you "
            "remove this field or set it to false"
        )


async def _server_schema(session: ClusterAccess) -> PodSchema:
    """Return the schema of pods that the cluster's API server publishes."""
    from ringtrain_operator.cluster.pod_schema import read_pod_schema

    return await read_pod_schema(session.api)
