"""Command `dtj logs JOB`: print the merged output of all ranks, or one rank's whole log."""

import sys
from contextlib import aclosing
from dataclasses import replace

import click

from ringtrain_operator.reporting import errors_reported

from ..jobs.launcher_output import WantedLauncherOutput
from ..jobs.pod_logs import WantedPod, read_pod
from ..jobs.runs import AsyncClient
from ..local.past_runs import newest_run, past_run_pod_lines
from .session import (
    ClusterAccess,
    ClusterOptions,
    job_argument,
    local_or_cluster_options,
    runs_folder,
    with_client,
    with_session,
)


@click.command()
@job_argument
@click.option("--rank", type=click.IntRange(min=0), default=None, help="Print the whole log of this rank.")
@click.option(
    "--attempt", type=click.IntRange(min=1), default=None, help="Number of the attempt; default: the current one."
)
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Print new lines until the job (or, with --attempt, that attempt) ends.",
)
@click.option("--tail", type=click.IntRange(min=0), default=None, help="Start with the last N lines.")
@click.option(
    "--data-worker",
    type=click.IntRange(min=0),
    default=None,
    metavar="N",
    help="Print the output of data worker N.",
)
@click.option("--evaluator", is_flag=True, help="Print the output of the evaluator.")
@local_or_cluster_options
def logs(
    name: str,
    rank: int | None,
    attempt: int | None,
    follow: bool,
    tail: int | None,
    data_worker: int | None,
    evaluator: bool,
    cluster: ClusterOptions | None,
) -> None:
    """Print the output of all ranks, or of one rank.

    While the launcher runs, --rank and --attempt read files in its pod; you need the right to exec in that pod. When
    the launcher has ended, they read the output of its pod. If that output is incomplete, a short-lived pod reads the
    claim of spec.logs; you need the right to create pods. See docs/logs.md.

    The output of data workers and the evaluator is in their pods, as long as the pods exist.
    """
    if data_worker is not None or evaluator:
        if rank is not None or attempt is not None or (evaluator and data_worker is not None):
            raise click.UsageError(
                "--rank/--attempt, --data-worker and --evaluator cannot be combined; use one of them"
            )
        _print_pod_logs(WantedPod(name, data_worker, follow, tail), cluster)
        return
    wanted = WantedLauncherOutput(name, rank, attempt, follow, tail)

    async def work(client: AsyncClient) -> None:
        async with aclosing(client.backend.logs(wanted)) as chunks:
            async for chunk in chunks:
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()

    with_client(cluster, work)


def _print_pod_logs(wanted: WantedPod, cluster: ClusterOptions | None) -> None:
    """Print the output of a data worker or the evaluator."""
    if cluster is None:
        if wanted.follow:
            raise click.UsageError(
                "--follow works on a cluster only; dtj local --logs prints the output of ranks while the job runs"
            )
        with errors_reported():
            run = newest_run(runs_folder(), wanted.name)
            pod = replace(wanted, name=run.name).pod  # `wanted.name` may be the run's folder
            sys.stdout.buffer.writelines(past_run_pod_lines(run, pod, wanted.tail))
            sys.stdout.buffer.flush()
        return

    async def work(session: ClusterAccess) -> None:
        async with aclosing(read_pod(session, wanted)) as lines:
            async for line in lines:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()

    with_session(cluster, work)
