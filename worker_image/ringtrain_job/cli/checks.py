"""Checks of the options and the command of `ringtrain run`, made before any process starts."""

import difflib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from ringtrain_job.cli.launchers import launcher_of
from ringtrain_job.logs.metrics_rule import metrics_rule_problem

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def check_name_option(name: str | None) -> None:
    """Raise click.UsageError unless `name` is a valid name of one folder."""
    if name is not None and not _NAME.fullmatch(name):
        raise click.UsageError(
            f"--name {name!r}: expected letters, digits, '-', '_' and '.', at most 200, the first a letter or "
            "digit; --runs names the folder of the runs"
        )


def check_metrics_option(rule: str | None) -> None:
    """Raise click.UsageError unless `rule` is a valid regular expression for metrics in printed lines."""
    if rule is not None and (problem := metrics_rule_problem(rule)):
        raise click.UsageError(f"--metrics {rule!r} {problem}")


def check_log_dir(log_dir: Path) -> None:
    """Raise click.UsageError unless logs can be written to `log_dir`. Create it if necessary."""
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=log_dir):
            pass
    except OSError as exc:
        raise click.UsageError(
            f"--runs {log_dir}: cannot write logs to this folder ({exc.strerror}); choose a "
            "directory that you can write"
        ) from exc


def check_launcher(ranks: int, command: Sequence[str]) -> None:
    """Raise click.UsageError if several ranks would run a launcher, such as torchrun: each would start a world."""
    if ranks > 1 and (found := launcher_of(command)):
        raise click.UsageError(
            f"{found} starts ranks itself, so each of the {ranks} ranks would start another world: remove {found} and "
            f"its options, and pass only the program that it starts: ringtrain run -np {ranks} python train.py"
        )


def check_command(program: str, path: str) -> None:
    """Print an error and exit with 127 (not found) or 126 (not executable) unless `program` can be executed."""
    if shutil.which(program, path=path):
        return
    if os.sep in program:
        missing = not Path(program).exists()
        why = "the file does not exist" if missing else "it is a directory, or not executable (chmod +x)"
    else:
        missing, why = True, f"PATH has no program of this name{_similar_program_text(program, path)}"
    click.echo(f"Error: cannot execute {program}: {why}", err=True)
    sys.exit(127 if missing else 126)


def _similar_program_text(program: str, path: str) -> str:
    """Return a hint at a program with a similar name; empty if there is none."""
    if Path(program).exists():
        return f"; did you mean ./{program}, or python {program}?"
    found: set[str] = set()
    for directory in path.split(os.pathsep):
        with suppress(OSError):
            found.update(os.listdir(directory or "."))
    near = difflib.get_close_matches(program, found, n=1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""
