"""`dtj list`: the jobs of a namespace, or of all. `dtj why JOB`: why one does not run, or did not end well."""

import json
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console

from ..local.documents import write_documents
from ..local.wording import wrapped_display_text
from .session import ClusterOptions, Json, job_argument, local_or_cluster_options, output_option, with_client


@click.command("list")
@click.option("--all-namespaces", "-A", is_flag=True, help="Jobs of every namespace.")
@output_option("table", "wide", "json", "yaml", "name", help="Format; wide: with backend, image and reason.")
@local_or_cluster_options
def list_jobs(all_namespaces: bool, output: str, cluster: ClusterOptions | None) -> None:
    """List jobs with their state and progress."""
    jobs = with_client(cluster, lambda client: client.backend.select(everywhere=all_namespaces))
    if output in ("json", "yaml"):
        print_data(jobs, output)
    elif output == "name":
        for job in jobs:
            click.echo(job["metadata"]["name"])
    else:
        print_jobs(jobs, all_namespaces, output == "wide")


def print_data(data: Any, form: str) -> None:
    """Print `data` as `form`: json or yaml."""
    click.echo(f"{json.dumps(data, indent=2)}\n" if form == "json" else write_documents([data]), nl=False)


def print_jobs(jobs: list[Json], with_namespace: bool = False, is_wide: bool = False) -> None:
    """Print a table with a line for each of `jobs`."""
    from rich.table import Table

    if not jobs:
        click.echo("No jobs.", err=True)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ["NAMESPACE"] if with_namespace else []
    columns += ["NAME", "STATE", "WORKERS", "RESTARTS", "PROGRESS", "AGE"]
    for column in [*columns, *(["BACKEND", "IMAGE", "REASON"] if is_wide else [])]:
        table.add_column(column, no_wrap=True)
    for job in jobs:
        namespace = [job["metadata"]["namespace"]] if with_namespace else []
        table.add_row(*namespace, *_job_row(job), *(_more_of_job(job) if is_wide else ()))
    # A terminal breaks a line that is longer, and a pipe has no width: nothing may be cut off, as rich would do.
    console = Console()
    Console(width=max(200, console.width)).print(table)


def _job_row(job: Json) -> tuple[str, ...]:
    status = job.get("status") or {}
    return (
        job["metadata"]["name"],
        str(status.get("state") or "Pending"),
        str(status.get("workers") or f"0/{(job['spec'].get('worker') or {}).get('replicas', 1)}"),
        str(status.get("restarts") or 0),
        str(status.get("progressSummary") or "-"),
        job_age(job["metadata"]["creationTimestamp"], datetime.now(UTC)),
    )


def _more_of_job(job: Json) -> tuple[str, ...]:
    containers = job["spec"]["worker"].get("template", {}).get("spec", {}).get("containers") or [{}]
    return (
        job["spec"].get("backend", "ring"),
        str(containers[0].get("image") or "-"),
        str((job.get("status") or {}).get("reason") or "-"),
    )


def job_age(created: str, now: datetime) -> str:
    """How long ago, in the two largest units at most, as kubectl says it."""
    seconds = max(0, int((now - datetime.fromisoformat(created.replace("Z", "+00:00"))).total_seconds()))
    for size, unit, below, inner in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            whole, rest = seconds // size, seconds % size // below
            return f"{whole}{unit}{rest}{inner}" if rest and whole < 10 else f"{whole}{unit}"
    return f"{seconds}s"


@click.command()
@job_argument
@output_option("text", "json", "yaml", help="Format; json and yaml have the lines as a list.")
@local_or_cluster_options
def why(name: str, output: str, cluster: ClusterOptions | None) -> None:
    """Say why the job is in the state it is in: its conditions, its pods, the last warnings, the last failure."""
    found = with_client(cluster, lambda client: client.backend.causes(name))
    if output != "text":
        print_data(found, output)
        return
    console = Console()
    for line in found:
        click.echo(wrapped_display_text(line, console, " " * (len(line) - len(line.lstrip()) + 2)))
