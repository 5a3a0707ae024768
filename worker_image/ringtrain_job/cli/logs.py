"""The command `ringtrain logs`, which prints logs from a run's folder, a pod's volume or an object store."""

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from ringtrain.errors import counted, in_ranges
from ringtrain.shared import contract
from ringtrain.shared.environment import EnvironmentVariables
from ringtrain.shared.settings import Settings, integer, path, text
from ringtrain.shared.storage import ObjectStore
from ringtrain_job.cli.runs import RUNS, find_attempt, run_options
from ringtrain_job.control.settings import MOST_SLOTS, MOST_WORKERS
from ringtrain_job.launcher.outcome import read_outcome
from ringtrain_job.launcher.summary import summarize_attempt
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.reading import (
    LogMissing,
    find_log,
    follow_log,
    log_tail_position,
    read_log_from,
)
from ringtrain_job.logs.shipping import read_shipped, shipped_attempts, shipped_log_names


@click.command()
@run_options
@click.option("--rank", type=click.IntRange(min=0), help="Print only this rank (elastic: this slot) [default: all].")
@click.option("--follow", "-f", "following", is_flag=True, help="Print new lines until the attempt ends.")
@click.option("--tail", type=click.IntRange(min=0), help="Start with the last N lines.")
@click.option("--reports", is_flag=True, help="Print the ranks' reports as JSON lines, not their output.")
def logs(
    run: str | None,
    runs: Path,
    attempt: int | None,
    rank: int | None,
    following: bool,
    tail: int | None,
    reports: bool,
) -> None:
    """Print the output of ranks in a run (the newest, or RUN), byte for byte.

    RUN is a name that `ringtrain list` prints, or a folder. In the launcher's container, which mounts the volume of
    logs, the default is the container's job:

    kubectl exec digits-launcher -- ringtrain logs --rank 3 --follow
    """
    if reports and rank is not None:
        raise click.UsageError("use one of --rank and --reports: reports of all ranks are in one file")
    env = EnvironmentVariables(os.environ)
    wanted = _WantedLogs(rank, attempt, tail, reports)
    of_pod = run is None and runs == RUNS and contract.ENV_JOB_NAME in os.environ
    if of_pod and (shipped := _shipped_log(env, wanted)) is not None:
        if following:
            print(
                "ringtrain: no launcher is running here, so --follow ends; this is the log in the object store",
                file=sys.stderr,
            )
        _print_chunks(shipped)
        return
    files, present = _pod_files(env, attempt) if of_pod else (find_attempt(run, runs, attempt), True)
    if reports and files.directory.is_dir():
        path = files.metrics
    elif rank is None or not present or not files.directory.is_dir():
        path = find_log(files, rank)
    else:
        path = _rank_log(files, rank, _rank_count(env) if of_pod else summarize_attempt(files).ranks or 0)
        if not (of_pod or following or path.exists()):
            written = (read_outcome(files) or {}).get("rankLogLines") or ()
            if rank < len(written) and written[rank]:
                raise LogMissing(f"{path} is missing; the rank has printed {counted(written[rank], 'line')}")
            print(f"rank {rank} has printed nothing", file=sys.stderr)
    start = 0 if tail is None else log_tail_position(path, tail)
    goes_on = following and present
    _print_chunks(follow_log(path, start, files.outcome.exists) if goes_on else read_log_from(path, start))


def _print_chunks(chunks: Iterable[bytes]) -> None:
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


@dataclass(frozen=True, kw_only=True)
class _LoggedJob(Settings):
    """Settings that name this pod's job, its attempt, and the folder of its logs."""

    attempt: int = integer(contract.ENV_ATTEMPT, low=1)
    root: Path = path(contract.ENV_LOG_DIR, Path(contract.LOG_DIR))
    name: str = text(contract.ENV_JOB_NAME)
    namespace: str = text(contract.ENV_JOB_NAMESPACE)


@dataclass(frozen=True, kw_only=True)
class _LoggedWorld(Settings):
    """Settings that define the world size of this pod's job."""

    slots: int = integer(contract.ENV_SLOTS_PER_WORKER, 1, low=1, high=MOST_SLOTS)
    workers: int = integer(contract.ENV_NUM_WORKERS, low=1, high=MOST_WORKERS)


@dataclass(frozen=True)
class _WantedLogs:
    """Part of a run's logs to print: a rank (None: all), an attempt, a number of last lines, or the reports."""

    rank: int | None
    attempt: int | None
    tail: int | None
    reports: bool


def _shipped_log(env: EnvironmentVariables, wanted: _WantedLogs) -> Iterator[bytes] | None:
    """Return the requested log from the job's object store; None if a volume has it or no store is set."""
    uri = env.optional(contract.ENV_LOG_URI)
    if not uri or contract.ENV_JOB_NAME not in os.environ:
        return None
    files, _ = _pod_files(env, wanted.attempt)
    if files.job_log.exists():
        return None
    store = ObjectStore(uri)
    number = files.number
    path = files.job_log if wanted.rank is None else files.rank_log(wanted.rank)
    path = files.metrics if wanted.reports else path
    names = shipped_log_names(store, number)
    if path.name not in names:
        attempts = shipped_attempts(store)
        if number in attempts and (wanted.rank is None or wanted.rank < _rank_count(env)):
            return iter(())  # the rank has written nothing
        stored = in_ranges(attempts)
        raise LogMissing(f"{uri} has no {path.name} of attempt {number}; it has logs of attempts {stored}")
    return read_shipped(store, number, path.name, wanted.tail)


def _rank_log(files: AttemptFiles, rank: int, ranks: int) -> Path:
    """Return the path of the log of `rank`, which does not exist before the rank prints. `ranks`: world size; 0 if
    unknown."""
    if not ranks or files.rank_log(rank).exists():
        return find_log(files, rank)
    if rank >= ranks:
        raise LogMissing(f"rank {rank} does not exist; expected 0 to {ranks - 1}")
    return files.rank_log(rank)


def _rank_count(env: EnvironmentVariables) -> int:
    found = _LoggedWorld.read(env)
    return found.workers * found.slots


def _pod_files(env: EnvironmentVariables, attempt: int | None) -> tuple[AttemptFiles, bool]:
    """Return the files of `attempt` (None: the current one), and whether that attempt is the current one, whose files
    grow."""
    job = _LoggedJob.read(env)
    wanted = attempt or job.attempt
    return AttemptFiles.of(job.root, job.namespace, job.name, wanted), wanted == job.attempt
