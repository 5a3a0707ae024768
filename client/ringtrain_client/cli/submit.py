"""`dtj submit FILE…`: create jobs on a cluster."""

import sys
from pathlib import Path

import click

from ringtrain_operator.cluster.api.errors import NotFound
from ringtrain_operator.reporting import errors_reported
from ringtrain_operator.spec.parse import parse_job
from ringtrain_operator.spec.training_template import named_template

from ..jobs.errors import JobFailed
from ..jobs.runs import AsyncClient, AsyncRun
from ..local.manifest import job_label, load_jobs
from .session import ClusterOptions, Json, cluster_options, with_client


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--wait", is_flag=True, help="Wait until the jobs end. The exit code is 1 if a job fails or is rejected.")
@cluster_options
def submit(files: tuple[Path, ...], wait: bool, cluster: ClusterOptions) -> None:
    """Check the jobs in FILES and create them."""
    found: list[tuple[str, Json]] = []
    for path in files:
        with errors_reported(f"{path}: "):
            jobs = load_jobs(path)
        for obj in jobs:
            about = f"{path}: {job_label(obj, jobs)}"
            with errors_reported(about):
                if named_template(obj) is None:  # with a template, the cluster merges and checks the job
                    parse_job(obj, templates=False)
            found.append((about, obj))
    sys.exit(with_client(cluster, lambda client: _submit(client, found, wait)))


async def _submit(client: AsyncClient, found: list[tuple[str, Json]], wait: bool) -> int:
    """Create the jobs, wait for them if `wait`, and return the exit code.

    `found`: for each job the start of error lines about it, and the job.
    """
    for about, job in found:  # check all before any is created
        with errors_reported(about):
            await client.backend.check(job)
    made = [await client.submit(job) for _, job in found]
    for run in made:
        click.echo(
            f"{run.namespace}/{run.name} created; follow it with: dtj logs -n {run.namespace} {run.name} --follow"
        )
    return int(wait and [await _submitted_run_succeeds(run) for run in made] != [True] * len(made))


async def _submitted_run_succeeds(run: AsyncRun) -> bool:
    """Wait for the job's end, print its state, and return whether it succeeded."""
    try:
        await run.wait()
    except JobFailed as exc:
        ended = exc.status.condition("Accepted" if exc.status.state == "Rejected" else "Failed")
        reason = f": {ended.reason}: {ended.message}" if ended is not None else ""
        click.echo(f"{run.namespace}/{run.name}: {exc.status.state}{reason}")
        return False
    except NotFound:
        click.echo(f"{run.namespace}/{run.name}: Deleted")
        return False
    click.echo(f"{run.namespace}/{run.name}: Succeeded")
    return True
