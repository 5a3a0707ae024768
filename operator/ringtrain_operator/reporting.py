"""Error output of the commands `ringtrain-operator` and `dtj`."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from .errors import Invalid, ManifestUnreadable, OperatorError


def problem_lines(error: OperatorError) -> list[str]:
    """Return an error as lines of text, one for each problem."""
    if isinstance(error, Invalid):
        return [str(problem) for problem in error.problems]
    return [str(error)]


@contextmanager
def errors_reported(prefix: str = "") -> Iterator[None]:
    """Turn an OperatorError into lines on stderr and exit code 1; `prefix` names the file."""
    try:
        yield
    except OperatorError as exc:
        about = "" if isinstance(exc, ManifestUnreadable) else prefix  # its message names the file
        lines = [f"{about}{line}" for line in problem_lines(exc)]
        raise click.ClickException("\n       ".join(lines)) from exc
