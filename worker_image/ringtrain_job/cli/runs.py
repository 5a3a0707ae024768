"""Runs in a folder: find them by name, and options for commands that read one."""

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from ringtrain.errors import in_ranges
from ringtrain_job.launcher.summary import AttemptSummary, attempt_start, summarize_attempt
from ringtrain_job.logs.fields import printable_text
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.reading import LogMissing, find_attempts

F = TypeVar("F", bound=Callable[..., Any])
# The default of --runs.
RUNS: Final = Path("runs")
# Folder between --runs and a run's folder, in place of the namespace on a cluster.
NAMESPACE: Final = "local"
_NAMES_SHOWN: Final = 5
STATE_COLOURS: Final = {"Succeeded": "green", "Failed": "red", "Killed": "red", "Stopped": "magenta", "Running": "cyan"}


@dataclass(frozen=True)
class Run:
    """One run: its name, and a summary of its newest attempt."""

    name: str
    summary: AttemptSummary

    @property
    def files(self) -> AttemptFiles:
        """Files of the newest attempt."""
        return self.summary.files

    def document(self) -> dict[str, Any]:
        """Return the run as a JSON object."""
        return {"name": self.name, **self.summary.document()}


def runs_option(command: F) -> F:
    """Add the option `--runs`, the folder of runs, to `command`."""
    kind = click.Path(file_okay=False, path_type=Path)
    return click.option("--runs", type=kind, default=RUNS, show_default=True, help="Folder with the runs.")(command)


def run_options(command: F) -> F:
    """Add the argument RUN and the options `--runs` and `--attempt` to `command`, and return it."""
    command = click.argument("run", required=False, metavar="[RUN]")(command)
    attempt = click.option("--attempt", type=click.IntRange(min=1), help="Number of the attempt [default: the newest].")
    return attempt(runs_option(command))


def find_runs(where: Path) -> list[Run]:
    """Return all runs in the folder `where` and some levels below it, newest first."""
    found = [Run(name, summarize_attempt(files)) for name, files in _newest_attempts(where)]
    return sorted(found, key=lambda run: (-(run.summary.began or 0.0), run.name))  # as _newest_first sorts


def find_run(name: str, where: Path) -> Run:
    """Return the run called `name` below `where`, or the newest run in the folder `name`. Raises LogMissing if there is
    none."""
    files = find_attempt(name, where)
    named = (known for known, newest in _newest_attempts(where) if newest.directory == files.directory)
    folder = files.directory
    # A folder whose name is no number is a copy of an attempt; its run's name would be that of another run.
    unlisted = folder.parent.name if folder.name.isdecimal() else f"{folder.parent.name}/{folder.name}"
    return Run(next(named, unlisted), summarize_attempt(files))


def find_attempt(name: str | None, where: Path, attempt: int | None = None) -> AttemptFiles:
    """Return the files of an attempt of a run. Defaults: the newest run, its newest attempt. Raises LogMissing if there
    is none.

    `name`: name that `ringtrain list` prints, name of the run's job, or a folder.
    """
    if name is not None and not name.strip():
        raise LogMissing("the name of the run is empty; `ringtrain list` shows the names")
    known = list(_newest_attempts(where))
    if name is None:
        if not known and not any(find_attempts(where)):
            raise LogMissing(no_runs_text(where))
        found = next((files for _, files in _newest_first(known)), None)
    else:
        found = next((files for one, files in known if one == name), None)
        if found is None and "…" in name:  # as `ringtrain list` shortens names on a terminal
            begin, _, end = name.partition("…")
            cut = [files for one, files in known if one.startswith(begin) and one.endswith(end)]
            found = cut[0] if len(cut) == 1 else None
        if found is None and not Path(name).is_dir():
            of_job = _newest_first((one, files) for one, files in known if files.directory.parent.name == name)
            found = next((files for _, files in of_job), None)
    if found is not None:
        return found if attempt is None else _find_below(found.directory.parent, attempt)
    if name is None or Path(name).is_dir():
        return _find_below(where if name is None else Path(name), attempt)
    if not known:
        raise LogMissing(no_runs_text(where))
    names = ", ".join(one for one, _ in _newest_first(known)[:_NAMES_SHOWN])
    raise LogMissing(f"{name} is neither a run in {where} nor a folder; the newest runs are {names}")


def _find_below(where: Path, attempt: int | None) -> AttemptFiles:
    """Return the files of the newest attempt in `where` or below, with number `attempt` if given. Raises LogMissing if
    there is none."""
    found = list(find_attempts(where))
    numbered = [files for files in found if attempt is None or files.directory.name == str(attempt)]
    if not found:
        raise LogMissing(f"{where.absolute()} contains no run; pass a directory of runs")
    if not numbered:
        known = {int(files.directory.name) for files in found if files.directory.name.isdecimal()}
        raise LogMissing(f"{where.absolute()} has no attempt {attempt}; its attempts are: {in_ranges(known)}")
    return min(numbered, key=lambda files: (-attempt_start(files), str(files.directory)))


def _newest_first(known: Iterable[tuple[str, AttemptFiles]]) -> list[tuple[str, AttemptFiles]]:
    """Return `known`, names with attempts, sorted by start, newest first; a run and its copy by name."""
    return sorted(known, key=lambda one: (-attempt_start(one[1]), one[0]))


def no_runs_text(where: Path) -> str:
    """Return the message that `where` has no runs, with a command that creates one."""
    option = "" if where == RUNS else f" --runs {where}"
    what = "has no runs" if where.is_dir() else "does not exist, so there are no runs"
    return f"{where} {what}; `ringtrain run{option} -np 2 python train.py` creates one, --runs names another folder"


def make_run_folder(where: Path, name: str | None, program: str) -> Path:
    """Create a new run's folder, named `name` or `program`-XXXX, with -2, -3 … if it exists; return its path."""
    wanted = name or f"{program}-{secrets.token_hex(2)}"
    for number in range(1, 10_000):
        folder = where / NAMESPACE / (wanted if number == 1 else f"{wanted}-{number}")
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise LogMissing(f"{where} has 10,000 runs of the name {wanted}; use another --name")


def _newest_attempts(where: Path) -> Iterator[tuple[str, AttemptFiles]]:
    """Yield the name and newest attempt of each run. Runs with equal short names get their paths as names."""
    newest: dict[Path, Path] = {}
    for attempt in (files.directory for files in find_attempts(where)):
        if attempt.name.isdecimal():
            known = newest.get(attempt.parent, attempt)
            newest[attempt.parent] = max(attempt, known, key=lambda path: int(path.name))
    names = [_short_name(job, where) for job in newest]
    for name, (job, attempt) in zip(names, newest.items(), strict=True):
        unique = name if names.count(name) == 1 else job.relative_to(where).as_posix()
        yield printable_text(unique), AttemptFiles(attempt)


def _short_name(job: Path, where: Path) -> str:
    """Return the name of the run whose logs are in the folder `job`.

    It is `train-3f2a` for `ringtrain run`, `digits-20261122-100637` for `dtj local`, and otherwise the path of `job`
    below `where`.
    """
    if job == where or not job.is_relative_to(where):
        return job.name
    match job.relative_to(where).parts:
        case (namespace, name) if namespace == NAMESPACE:
            return name
        case (name, "logs", _, _):
            return name
        case parts:
            return "/".join(parts)
