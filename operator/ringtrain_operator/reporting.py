"""Error output of the commands `ringtrain-operator` and `dtj`."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from .errors import Invalid, ManifestUnreadable, OperatorError


def problem_lines(error: OperatorError) -> list[str]:
    """Return the text of an error as lines, one for each problem of an invalid manifest."""
    if isinstance(error, Invalid):
        return [str(problem) for problem in error.problems]
    return [str(error)]


@contextmanager
def errors_reported(prefix: str = "") -> Iterator[None]:
    """Print an OperatorError of the block to stderr and exit with code 1. `prefix`: start of each line."""
    try:
        yield
    except OperatorError as exc:
        about = "" if isinstance(exc, ManifestUnreadable) else prefix  # its message names the file
        lines = [f"{about}{line}" for line in problem_lines(exc)]
        raise click.ClickException("\n       ".join(lines)) from exc
