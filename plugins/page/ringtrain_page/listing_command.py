"""`ringtrain list` and `ringtrain compare`: runs side by side."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ringtrain_page.document import page
from ringtrain_page.runs import FACTS, MOST_COMPARED, PageRun, compare_page_runs, find_run, find_runs

_RUNS = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command("list")
@click.argument("directory", default=Path("runs"), type=_RUNS)
@click.option(
    *("--output", "-o"),
    type=click.Choice(["table", "json", "yaml", "name"]),
    default="table",
    show_default=True,
    help="Format.",
)
def list_runs(directory: Path, output: str) -> None:
    """List the runs in DIRECTORY, or below it, the newest first [default: runs]."""
    runs = find_runs(directory)
    if output in ("json", "yaml"):
        _print_data([run.document() for run in runs], output)
        return
    if not runs:
        raise click.ClickException(f"{directory.absolute()} has no runs in it or below; give a directory of runs")
    if output == "name":
        for run in runs:
            click.echo(run.name)
        return
    head = ["name", *FACTS, "when"]
    _runs_table([head, *([run.name, *(fact(run) for fact in FACTS.values()), _run_began_text(run)] for run in runs)])


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@click.option("--dir", "directory", default=Path("runs"), type=_RUNS, show_default=True, help="Where runs are.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write one HTML file with curves.")
def compare_runs(runs: tuple[str, ...], directory: Path, html: Path | None) -> None:
    """Compare runs, given by name or folder: how they went, and in what they differ.

    What differs is what `run.json` has: command, image, git's commit, versions, and what the programs gave to
    ringtrain.report_config.
    """
    if not 2 <= len(runs) <= MOST_COMPARED:
        raise click.UsageError(f"{len(runs)} run(s) to compare; expected 2 to {MOST_COMPARED}")
    found = compare_page_runs([find_run(name, directory) for name in runs])
    differences = found["differences"] or [("no difference", [])]
    _runs_table([["", *found["runs"]], *([name, *values] for name, values in (*found["facts"], *differences))])
    if html is not None:
        try:
            html.write_text(page({"compare": found}), encoding="utf-8", errors="replace")
        except OSError as exc:
            raise click.ClickException(f"{html} cannot be written ({exc.strerror}); name another") from exc
        click.echo(html)


def _print_data(data: list[dict[str, Any]], form: str) -> None:
    """Print `data`, objects of plain values, as `form`: json or yaml."""
    if form == "json":
        click.echo(json.dumps(data, indent=2))
        return
    # A value that JSON writes is one that YAML reads, and so this needs no library for YAML.
    for entry in data:
        for at, (name, value) in enumerate(entry.items()):
            click.echo(f"{'  ' if at else '- '}{name}: {json.dumps(value)}")
    if not data:
        click.echo("[]")


def _run_began_text(run: PageRun) -> str:
    return "" if run.began is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.began))


def _runs_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) if i < len(row) else 0 for row in rows) for i in range(max(map(len, rows)))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())
