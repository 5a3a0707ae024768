"""Commands `dtj list` (jobs of one namespace or of all) and `dtj why JOB` (the causes of a job's state)."""

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ringtrain_operator.spec.template import containers_of
from ringtrain_operator.spec.training_container import training_container_index

from ..jobs.runs import AsyncClient
from ..local.past_runs import repeated_run_names, unreadable_runs_text
from ..local.wording import NOT_PROCESSED, STATE_STYLES, shown_state, wrapped_text
from .session import (
    ClusterOptions,
    Json,
    job_argument,
    local_or_cluster_options,
    output_option,
    print_data,
    runs_folder,
    with_client,
)

# Short enough for a person, long enough for the API server: a list is one request.
_POLL_S = 2.0
# Width of state, workers, restarts, age and the first word of progress, with gaps.
_OTHER_COLUMNS = 54


@click.command("list")
@click.option("--all-namespaces", "-A", is_flag=True, help="List the jobs of all namespaces.")
@click.option("--watch", "-w", is_flag=True, help="Show changes until Ctrl-C.")
@output_option("table", "wide", "json", "yaml", "name", help="Output format; wide adds backend, image and reason.")
@local_or_cluster_options
def list_jobs(all_namespaces: bool, watch: bool, output: str, cluster: ClusterOptions | None) -> None:
    """List jobs with their state and progress."""
    columns = JobColumns(all_namespaces, output == "wide", is_local=cluster is None)
    if watch and output not in ("table", "wide"):
        raise click.UsageError(f"--watch shows a table; remove -o {output} or --watch")
    if watch:
        with_client(cluster, lambda client: _watch_jobs(client, columns))
    jobs = with_client(cluster, lambda client: client.backend.select(everywhere=all_namespaces))
    if cluster is None and (damaged := unreadable_runs_text(runs_folder())):
        click.echo(damaged, err=True)
    if output in ("json", "yaml"):
        print_data(jobs if cluster is not None else list(map(_as_in_table, jobs, columns.names_of(jobs))), output)
    elif output == "name":
        for name in columns.names_of(jobs):
            click.echo(name)
    elif not jobs:
        click.echo(_no_jobs_text(cluster, all_namespaces), err=True)
    else:
        print_jobs(jobs, columns)


def _no_jobs_text(cluster: ClusterOptions | None, everywhere: bool) -> str:
    """Return the message that a list is empty, with a way out."""
    if cluster is None:
        return f"No jobs in {runs_folder()}/; `dtj local FILE` runs a job on this machine."
    return "No jobs." if everywhere else "No jobs in this namespace; -A lists all namespaces."


@dataclass(frozen=True)
class JobColumns:
    """Optional columns of a table of jobs. `wide`: show backend, image and reason. `is_local`: of jobs that ran more
    than once under runs/, show the names of the runs instead."""

    namespace: bool = False
    wide: bool = False
    is_local: bool = False

    def names_of(self, jobs: list[Json]) -> list[str]:
        """Return the name of each job, or of its run if the job ran more than once under runs/."""
        runs = repeated_run_names(runs_folder()) if self.is_local else {}
        return [runs.get(str(job["metadata"].get("uid")), str(job["metadata"]["name"])) for job in jobs]


def _as_in_table(job: Json, name: str) -> Json:
    """Return a job that ran on this machine with the name and the state that the table shows."""
    status = job.get("status") or {}
    state = shown_state(status.get("state"), status.get("reason"))
    return {**job, "metadata": {**job["metadata"], "name": name}, "status": {**status, "state": state}}


def print_jobs(jobs: list[Json], columns: JobColumns = JobColumns()) -> None:
    """Print `jobs` as a table with one row for each job."""
    if not jobs:
        click.echo("No jobs.", err=True)
        return
    console = _table_console(columns)
    console.print(_jobs_table(jobs, columns, console.width))


def _table_console(columns: JobColumns) -> Console:
    """Return the rich console on which tables are printed. In a wide table or in a pipe, lines are not wrapped."""
    console = Console()
    return console if console.is_terminal and not columns.wide else Console(width=1000)


def _jobs_table(jobs: list[Json], columns: JobColumns, width: int) -> Table:
    """Return `jobs` as a table of at most `width` characters. Progress wraps first, then long names."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    names = [*(["NAMESPACE"] if columns.namespace else []), "NAME", "STATE", "WORKERS", "RESTARTS", "PROGRESS", "AGE"]
    cells = [
        [*([job["metadata"]["namespace"]] if columns.namespace else []), name]
        for job, name in zip(jobs, columns.names_of(jobs), strict=True)
    ]
    longest = max((sum(map(len, one)) for one in cells), default=0)
    breaks = {"PROGRESS", *(("NAMESPACE", "NAME") if longest > width - _OTHER_COLUMNS else ())}
    for name in [*names, *(["BACKEND", "IMAGE", "REASON"] if columns.wide else [])]:
        table.add_column(name, no_wrap=name not in breaks, overflow="fold")
    for job, named in zip(jobs, cells, strict=True):
        more = _wide_cells(job) if columns.wide else ()
        table.add_row(*named, *_job_row(job), *more)
    return table


def _newest_jobs_table(jobs: Sequence[Json], columns: JobColumns, console: Console) -> Group:
    """Return the table of the newest jobs, as many as fit the height of the terminal, and the number of other jobs."""
    by_age = sorted(range(len(jobs)), key=lambda index: str(jobs[index]["metadata"]["creationTimestamp"]))
    older = 0
    while True:
        table = _jobs_table([jobs[index] for index in sorted(by_age[older:])], columns, console.width)
        shown = Group(table, *([f"older jobs that are not shown: {older}; `dtj list` shows all"] if older else []))
        excess = len(console.render_lines(shown)) - (console.height - 1)  # the cursor has a line
        if excess <= 0 or older + 1 >= len(jobs):
            return shown
        older = min(older + excess, len(jobs) - 1)


async def _watch_jobs(client: AsyncClient, columns: JobColumns) -> None:
    """Show the jobs until Ctrl-C: on a terminal redraw the table, in a pipe or file print the rows that changed."""
    console = _table_console(columns)
    shown: dict[str, Json] = {}  # by uid
    with Live(console=console) if console.is_terminal else nullcontext() as live:
        while True:
            jobs = await client.backend.select(everywhere=columns.namespace)
            if live is not None:
                live.update(_newest_jobs_table(jobs, columns, console), refresh=True)
            elif any(changed := [shown.get(job["metadata"]["uid"]) != job for job in jobs]):
                with console.capture() as printed:  # all rows, so that the columns have the same widths
                    console.print(_jobs_table(jobs, columns, console.width))
                header, *rows = printed.get().splitlines(keepends=True)
                click.echo("".join([*([] if shown else [header]), *itertools.compress(rows, changed)]), nl=False)
            shown |= {job["metadata"]["uid"]: job for job in jobs}
            await asyncio.sleep(_POLL_S)


def _job_row(job: Json) -> tuple[str | Text, ...]:
    status = job.get("status") or {}
    state = shown_state(status.get("state"), status.get("reason"))
    wrong = (status.get("progress") or {}).get("notFinite")
    progress = ", ".join(filter(None, (status.get("progressSummary"), wrong)))
    return (
        Text(state, STATE_STYLES.get(state, "")),
        str(status.get("workers") or f"0/{(job['spec'].get('worker') or {}).get('replicas', 1)}"),
        str(status.get("restarts") or 0),
        progress or ("-" if status else NOT_PROCESSED),
        job_age(job["metadata"]["creationTimestamp"], datetime.now(UTC)),
    )


def _wide_cells(job: Json) -> tuple[str, ...]:
    template = job["spec"]["worker"].get("template") or {}
    containers = containers_of(template) or [{}]
    return (
        job["spec"].get("backend", "ring"),
        str(containers[training_container_index(template)].get("image") or "-"),
        str((job.get("status") or {}).get("reason") or "-"),
    )


def job_age(created: str, now: datetime) -> str:
    """Return the time since `created` in at most two units, as kubectl prints it."""
    seconds = max(0, int((now - datetime.fromisoformat(created.replace("Z", "+00:00"))).total_seconds()))
    for size, unit, below, inner in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            whole, rest = seconds // size, seconds % size // below
            return f"{whole}{unit}{rest}{inner}" if rest and whole < 10 else f"{whole}{unit}"
    return f"{seconds}s"


@click.command()
@job_argument
@output_option("text", "json", "yaml", help="Output format; json and yaml print the lines as a list.")
@local_or_cluster_options
def why(name: str, output: str, cluster: ClusterOptions | None) -> None:
    """Print why a job waits or has failed: its conditions, pods, last warnings and last failure."""
    found = with_client(cluster, lambda client: client.backend.causes(name))
    if output != "text":
        print_data(found, output)
        return
    console = Console()
    for line in found:
        click.echo(wrapped_text(line, console, " " * (len(line) - len(line.lstrip()) + 2)))
