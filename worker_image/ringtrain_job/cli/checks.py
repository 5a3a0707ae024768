"""Checks of `ringtrain run` before it starts any process."""

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
    """Raise a usage error unless `name` can name one directory."""
    if name is not None and not _NAME.fullmatch(name):
        raise click.UsageError(
            f"--name {name!r}: expected letters, digits, '-', '_' and '.', at most 200, the first a letter or "
            "digit; --runs names the folder of the runs"
        )


def check_metrics_option(rule: str | None) -> None:
    """Raise a usage error unless `rule` is a valid rule for lines with metrics."""
    if rule is not None and (problem := metrics_rule_problem(rule)):
        raise click.UsageError(f"--metrics {rule!r} {problem}")


def check_log_dir(log_dir: Path) -> None:
    """Raise a usage error unless logs can be written to `log_dir`, which is created if necessary."""
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=log_dir):
            pass
    except OSError as exc:
        raise click.UsageError(
            f"--runs {log_dir}: logs cannot be written there ({exc.strerror}); choose a directory that you can write"
        ) from exc


def check_launcher(ranks: int, command: Sequence[str]) -> None:
    """Raise a usage error if `command` starts ranks itself, so that each of several ranks would start its own world."""
    if ranks > 1 and (found := launcher_of(command)):
        raise click.UsageError(
            f"{found} starts ranks itself, so each of the {ranks} ranks would start a world of its own: remove "
            f"{found} and its options, and write the program that it starts: ringtrain run "
            f"-np {ranks} python train.py"
        )


def check_command(program: str, path: str) -> None:
    """Exit with a shell's exit status, 127 or 126, and a reason, unless `program` can be executed."""
    if shutil.which(program, path=path):
        return
    if os.sep in program:
        missing = not Path(program).exists()
        why = "the file does not exist" if missing else "it is a directory, or not executable (chmod +x)"
    else:
        missing, why = True, f"PATH has no program of this name{_similar_program_text(program, path)}"
    click.echo(f"Error: {program} cannot be executed: {why}", err=True)
    sys.exit(127 if missing else 126)


def _similar_program_text(program: str, path: str) -> str:
    """Return a hint at a program with a similar name, or an empty string."""
    if Path(program).exists():
        return f"; did you mean ./{program}, or python {program}?"
    found: set[str] = set()
    for directory in path.split(os.pathsep):
        with suppress(OSError):
            found.update(os.listdir(directory or "."))
    near = difflib.get_close_matches(program, found, n=1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""
