"""The commands `ringtrain list` and `ringtrain compare`."""

import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from ringtrain.errors import counted
from ringtrain_job.cli.runs import STATE_COLOURS, Run, find_run, find_runs, no_runs_text, runs_option
from ringtrain_job.launcher.summary import KILLED
from ringtrain_job.logs.fields import printable_text
from ringtrain_job.logs.reading import find_attempts
from ringtrain_page.comparison import MOST_COMPARED, comparison_document
from ringtrain_page.document import page

_COLUMNS: Final = ("name", "state", "ranks", "steps", "loss", "took", "began")
# Columns to omit, in this order, if the terminal is too narrow.
_LESS_IMPORTANT: Final = ("ranks", "took", "began", "loss")
_BETWEEN: Final = "  "
# Width of a cell on a terminal, so that one long value does not use the whole line.
_MOST_CHARACTERS: Final = 40
# Width to which a name is shortened on a narrow terminal before columns are omitted.
_FEWEST_CHARACTERS: Final = 16


@click.command("list")
@runs_option
@click.option(
    *("--output", "-o"),
    type=click.Choice(["table", "json", "yaml", "name"]),
    default="table",
    show_default=True,
    help="Output format.",
)
def list_runs(runs: Path, output: str) -> None:
    """List the runs in a folder and its subfolders, newest first."""
    found = find_runs(runs)
    if damaged := [run.name for run in found if run.summary.state == KILLED and run.files.outcome.exists()]:
        click.echo(f".outcome.json is damaged in {', '.join(damaged)}, so how the run ended is not known", err=True)
    # Jobs of `dtj local`, which writes job.json before the first attempt.
    jobs = sorted(path.parent for path in runs.glob("*/job.json"))
    if unstarted := [job.name for job in jobs if not any(find_attempts(job))]:
        click.echo(f"no attempt has started in {', '.join(unstarted)}; see dtj list --runs {runs}", err=True)
    if output in ("json", "yaml"):
        _print_data([run.document() for run in found], output)
    elif not found:
        click.echo(no_runs_text(runs), err=True)
    elif output == "name":
        for run in found:
            click.echo(run.name)
    else:
        rows = [{"name": run.name, **run.summary.shown, "began": _start_text(run)} for run in found]
        columns = _fitting_columns(rows, _terminal_width())
        _print_table([columns, *([row[name] for name in columns] for row in rows)])


@click.command("compare")
@click.argument("names", nargs=-1, required=True, metavar="RUN RUN...")
@runs_option
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Also write a page with curves to this HTML file."
)
def compare_runs(names: tuple[str, ...], runs: Path, html: Path | None) -> None:
    """Compare two or more runs. Each RUN is a name that `ringtrain list` prints, or a folder.

    A row has a run's state, steps, loss, speed and duration, and the settings in which the runs differ: those passed
    to ringtrain.report_config, command, image, git's commit and versions.
    """
    if not 2 <= len(names) <= MOST_COMPARED:
        raise click.UsageError(f"cannot compare {counted(len(names), 'run')}; expected 2 to {MOST_COMPARED}")
    found = comparison_document([find_run(name, runs) for name in names])
    # Each part of the table repeats the names, so that they get half of a narrow terminal.
    most = max(_FEWEST_CHARACTERS, _terminal_width() // 2 - len(_BETWEEN))
    rows = [[_with_middle_cut(name, most), *row] for name, row in zip(found["runs"], found["rows"], strict=True)]
    _print_table([["name", *found["columns"]], *rows])
    if not found["differ"]:
        click.echo("the runs have the same settings")
    if html is not None:
        try:
            html.write_text(page({"compare": found}), encoding="utf-8", errors="replace")
        except OSError as exc:
            raise click.ClickException(
                f"cannot write {html} ({exc.strerror}); choose another file with --html"
            ) from exc
        click.echo(html)


def _fitting_columns(rows: list[dict[str, str]], room: int) -> list[str]:
    """Return the columns that fit `room`. Shorten long names in `rows` first, then omit less important columns."""
    widths = {column: max(map(len, [column, *(row[column] for row in rows)])) for column in _COLUMNS}
    columns = list(_COLUMNS)
    for omitted in (None, *_LESS_IMPORTANT):
        if omitted:
            columns.remove(omitted)
        left = room - sum(widths[column] + len(_BETWEEN) for column in columns if column != "name")
        if left >= min(widths["name"], _FEWEST_CHARACTERS):
            break
    for row in rows:
        row["name"] = _with_middle_cut(row["name"], max(left, _FEWEST_CHARACTERS))
    return columns


def _with_middle_cut(text: str, most: int) -> str:
    """Return `text` with at most `most` characters: its beginning and its end, by which runs differ."""
    end = most // 2
    return text if len(text) <= most else f"{text[: most - end - 1]}…{text[-end:]}"


def _print_data(data: list[dict[str, Any]], form: str) -> None:
    """Print `data`, a list of flat objects, in the format `form`: json or yaml."""
    if form == "json":
        click.echo(json.dumps(data, indent=2))
        return
    # JSON values are valid YAML, so no YAML library is needed.
    for entry in data:
        for at, (name, value) in enumerate(entry.items()):
            click.echo(f"{'  ' if at else '- '}{name}: {json.dumps(value)}")
    if not data:
        click.echo("[]")


def _start_text(run: Run) -> str:
    """Return a run's start time as text; empty if it is unknown."""
    began = run.summary.began
    return "" if began is None else time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(began))


def _terminal_width() -> int:
    """Return the width of the terminal in columns; for a pipe, a very large number."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print `rows` as a table; the first row is its header.

    On a terminal, columns that do not fit are printed below as further parts, each of which repeats the first column.
    """
    room = _terminal_width()
    rows = [[printable_text(cell) for cell in row] for row in rows]  # settings may contain line breaks
    if room < sys.maxsize:
        cut = _MOST_CHARACTERS
        rows = [[row[0], *(cell if len(cell) <= cut else f"{cell[: cut - 1]}…" for cell in row[1:])] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    parts: list[list[int]] = [[0]]
    for column in range(1, len(widths)):
        if len(parts[-1]) > 1 and sum(widths[i] + len(_BETWEEN) for i in (*parts[-1], column)) > room + len(_BETWEEN):
            parts.append([0])
        parts[-1].append(column)
    for number, part in enumerate(parts):
        if number:
            click.echo()
        for at, row in enumerate(rows):
            cells = [_cell(rows[0][i], row[i], widths[i], is_head=not at) for i in part]
            click.echo(_BETWEEN.join(cells).rstrip())


def _cell(column: str, text: str, width: int, is_head: bool) -> str:
    """Return `text`, a cell of `column`, padded to `width` characters. A job's state is coloured, unless `is_head`."""
    colour = STATE_COLOURS.get(text) if column == "state" and not is_head else None
    return (click.style(text, colour) if colour else text) + " " * (width - len(text))
