"""`ringtrain report`: a run as one HTML file."""

from pathlib import Path

import click

from ringtrain_job.logs.reading import find_log_attempt
from ringtrain_page.document import page
from ringtrain_page.summary import summarize_page


@click.command()
@click.argument("directory", default=Path("runs"), type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--attempt", type=click.IntRange(min=1), default=None, help="This attempt; default: the newest.")
@click.option(
    "--to",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to [default: report.html beside the attempt's logs].",
)
def report(directory: Path, attempt: int | None, to: Path | None) -> None:
    """Write the newest run in DIRECTORY, or below it, as one HTML file [default: runs].

    Its curves, attempts, ranks, the first failure and the log are in the file, which needs no network and no other
    file to be read. Numbers between 0 and infinity alone can be drawn: NaN has no place in a curve.
    """
    files = find_log_attempt(directory, attempt)
    place = to or files.report
    try:
        run = summarize_page(files)
        if place.resolve().parent != files.directory.resolve():
            run["files"] = []  # links to what lies beside the page
        place.write_text(page(run), encoding="utf-8", errors="replace")
    except OSError as exc:
        raise click.ClickException(f"{place} cannot be written ({exc.strerror}); --to names another") from exc
    click.echo(place)
