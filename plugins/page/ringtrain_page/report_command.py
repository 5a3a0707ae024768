"""The command `ringtrain report`, which writes a run as one HTML file."""

from pathlib import Path

import click

from ringtrain_job.cli.runs import find_attempt, run_options
from ringtrain_page.document import page
from ringtrain_page.summary import summarize_page


@click.command()
@run_options
@click.option(
    "--to",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write [default: report.html in the log folder].",
)
def report(run: str | None, runs: Path, attempt: int | None, to: Path | None) -> None:
    """Write the newest run, or RUN, as one HTML file.

    RUN is a name that `ringtrain list` prints, or a folder. The file has curves, attempts, ranks, the first failure
    and the log, and needs no network and no other file. A curve has no point where a value is NaN or infinite.
    """
    files = find_attempt(run, runs, attempt)
    place = to or files.report
    try:
        shown = summarize_page(files)
        if place.resolve().parent != files.directory.resolve():
            shown["files"] = []  # the links are relative to the page
        place.write_text(page(shown), encoding="utf-8", errors="replace")
    except OSError as exc:
        raise click.ClickException(f"cannot write {place} ({exc.strerror}); choose another file with --to") from exc
    click.echo(place)
