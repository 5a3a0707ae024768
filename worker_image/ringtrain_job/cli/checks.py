"""What `ringtrain run` looks at before it starts anything."""

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

from ringtrain_job.cli.launchers import launcher_in
from ringtrain_job.logs.metrics_rule import metrics_rule_problem

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def check_name_option(name: str | None) -> None:
    """Raise a usage error unless `name` is the name of one directory."""
    if name is not None and not _NAME.fullmatch(name):
        raise click.UsageError(
            f"--name {name!r}: expected letters, digits, '-', '_' and '.', at most 200, the first a letter or "
            "digit; --runs names the folder of the runs"
        )


def check_metrics_option(rule: str | None) -> None:
    """Raise a usage error unless `rule` can be a rule for lines that report something."""
    if rule is not None and (problem := metrics_rule_problem(rule)):
        raise click.UsageError(f"--metrics {rule!r} {problem}")


def check_log_dir(log_dir: Path) -> None:
    """Raise a usage error unless logs can be kept in `log_dir`, which is made if need be."""
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=log_dir):
            pass
    except OSError as exc:
        raise click.UsageError(
            f"--runs {log_dir}: logs cannot be kept there ({exc.strerror}); give a directory that you can write"
        ) from exc


def check_launcher(ranks: int, command: Sequence[str]) -> None:
    """Raise a usage error where several ranks would each start a world of their own."""
    if ranks > 1 and (found := launcher_in(command)):
        raise click.UsageError(
            f"{found} starts ranks itself, and each of the {ranks} ranks would start a world of its own: leave "
            f"{found} and its options out and write the program that it starts: ringtrain run "
            f"-np {ranks} python train.py"
        )


def check_command(program: str, path: str) -> None:
    """End with a shell's exit status, 127 or 126, and the reason, unless `program` can be executed."""
    if shutil.which(program, path=path):
        return
    if os.sep in program:
        missing = not Path(program).exists()
        why = "there is no such file" if missing else "it is a directory, or not executable (chmod +x)"
    else:
        missing, why = True, f"PATH has no program of this name{_near_program(program, path)}"
    click.echo(f"Error: {program} cannot be executed: {why}", err=True)
    sys.exit(127 if missing else 126)


def _near_program(program: str, path: str) -> str:
    """A hint at the program that was meant, if there is one."""
    if Path(program).exists():
        return f"; did you mean ./{program}, or python {program}?"
    found: set[str] = set()
    for directory in path.split(os.pathsep):
        with suppress(OSError):
            found.update(os.listdir(directory or "."))
    near = difflib.get_close_matches(program, found, n=1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""
