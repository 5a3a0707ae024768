"""Runs below a folder, by name, and the argument and options of the commands that read one."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from ringtrain_job.launcher.summary import AttemptSummary, summarize_attempt
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.reading import LogMissing, find_log_attempt, find_logs

F = TypeVar("F", bound=Callable[..., Any])
# The default of --runs.
RUNS: Final = Path("runs")
# Folder between --runs and a run's folder, in place of the namespace on a cluster.
NAMESPACE: Final = "local"
_NAMES_SHOWN: Final = 5
STATE_COLOURS: Final = {"Succeeded": "green", "Failed": "red", "Killed": "red", "Stopped": "magenta", "Running": "cyan"}


@dataclass(frozen=True)
class Run:
    """One run: its name below the folder, and a summary of its newest attempt."""

    name: str
    summary: AttemptSummary

    @property
    def files(self) -> AttemptFiles:
        """Files of the newest attempt."""
        return self.summary.files

    def document(self) -> dict[str, Any]:
        """Return the run as JSON."""
        return {"name": self.name, **self.summary.document()}


def runs_option(command: F) -> F:
    """Add the option `--runs`, the folder of the runs."""
    kind = click.Path(file_okay=False, path_type=Path)
    return click.option("--runs", type=kind, default=RUNS, show_default=True, help="Folder of the runs.")(command)


def run_options(command: F) -> F:
    """Add the argument RUN and the options `--runs` and `--attempt`."""
    command = click.argument("run", required=False, metavar="[RUN]")(command)
    attempt = click.option("--attempt", type=click.IntRange(min=1), help="Number of the attempt [default: the newest].")
    return attempt(runs_option(command))


def find_runs(where: Path) -> list[Run]:
    """Return all runs in `where` or some levels below it, the newest first."""
    found = [Run(name, summarize_attempt(files)) for name, files in _newest_attempts(where)]
    return sorted(found, key=lambda run: run.summary.began or 0.0, reverse=True)


def find_run(name: str, where: Path) -> Run:
    """Return the run `name` below `where`, or the newest one in the folder `name`. Raises LogMissing."""
    files = find_attempt(name, where)
    named = (known for known, newest in _newest_attempts(where) if newest.directory == files.directory)
    return Run(next(named, files.directory.parent.name), summarize_attempt(files))


def find_attempt(name: str | None, where: Path, attempt: int | None = None) -> AttemptFiles:
    """Return the files of an attempt of the run `name`. Both default to the newest. Raises LogMissing.

    `name`: name that `ringtrain list` prints, name of the run's job, or a folder.
    """
    known = list(_newest_attempts(where))
    if name is None:
        if not known and not list(find_logs(where)):
            raise LogMissing(no_runs_text(where))
        return find_log_attempt(where, attempt)
    found = next((files for one, files in known if one == name), None)
    if found is None and not Path(name).is_dir():
        of_job = [files for _, files in known if files.directory.parent.name == name]
        found = max(of_job, key=lambda files: files.job_log.stat().st_mtime, default=None)
    if found is not None:
        return found if attempt is None else find_log_attempt(found.directory.parent, attempt)
    if Path(name).is_dir():
        return find_log_attempt(Path(name), attempt)
    if not known:
        raise LogMissing(no_runs_text(where))
    newest = sorted(known, key=lambda one: one[1].job_log.stat().st_mtime, reverse=True)
    names = ", ".join(one for one, _ in newest[:_NAMES_SHOWN])
    raise LogMissing(f"{name} is neither a run in {where} nor a folder; the newest runs are {names}")


def no_runs_text(where: Path) -> str:
    """Return an error message: `where` has no runs, and the command that creates one."""
    option = "" if where == RUNS else f" --runs {where}"
    what = "has no runs" if where.is_dir() else "does not exist, so there are no runs"
    return f"{where} {what}; `ringtrain run{option} -np 2 python train.py` creates one, --runs names another folder"


def make_run_folder(where: Path, name: str | None, program: str) -> Path:
    """Create and return the folder of a new run: `name`, or `program` and four hex digits; with -2 if it exists."""
    wanted = name or f"{program}-{secrets.token_hex(2)}"
    for number in range(1, 10_000):
        folder = where / NAMESPACE / (wanted if number == 1 else f"{wanted}-{number}")
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise LogMissing(f"{where} has 10,000 runs of the name {wanted}; use another --name")


def _newest_attempts(where: Path) -> Iterator[tuple[str, AttemptFiles]]:
    """Yield each run's name and its newest attempt. Two runs with the same short name get their paths as names."""
    newest: dict[Path, Path] = {}
    for log in find_logs(where):
        attempt = log.parent
        if attempt.name.isdecimal():
            known = newest.get(attempt.parent, attempt)
            newest[attempt.parent] = max(attempt, known, key=lambda path: int(path.name))
    names = [_short_name(job, where) for job in newest]
    for name, (job, attempt) in zip(names, newest.items(), strict=True):
        yield (name if names.count(name) == 1 else job.relative_to(where).as_posix()), AttemptFiles(attempt)


def _short_name(job: Path, where: Path) -> str:
    """Return a run's name: `train-3f2a`; of `dtj local`, `digits-20261122-100637`; else the path below `where`."""
    if job == where or not job.is_relative_to(where):
        return job.name
    match job.relative_to(where).parts:
        case (namespace, name) if namespace == NAMESPACE:
            return name
        case (name, "logs", _, _):
            return name
        case parts:
            return "/".join(parts)
