"""Summary that `ringtrain run` prints at its end: state, first failure, and where the logs are."""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from ringtrain_job.cli.runs import STATE_COLOURS
from ringtrain_job.launcher.summary import AttemptSummary, summarize_attempt
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.reading import log_tail_position, read_log_from

LINES_SHOWN = 20
_OTHERS_SHOWN = 16
_PEER_LOST = re.compile(r"\bPeerLost\b.*")


def print_summary(files: AttemptFiles) -> None:
    """Print the summary of a run to stderr. Lines break between words only, so that paths can be copied."""
    found = summarize_attempt(files)
    shown = found.shown
    _print_row("state", click.style(found.state, STATE_COLOURS.get(found.state), bold=True))
    if steps := _progress_text(found):
        _print_row("steps", steps)
    if shown["took"]:
        _print_row("took", shown["took"])
    _print_row("run", files.directory.parent.name)
    _print_row("logs", str(files.directory))
    if found.warning:
        print_line(found.warning, fg="yellow")
    if found.failure:
        _print_failure(files, found.failure)


def print_line(text: str, first: str = "", then: str = "", **style: Any) -> None:
    """Print `first` and `text` to stderr. A terminal's current line (progress) is replaced, and long text is wrapped.

    `then`: prefix of each further line on a terminal. A pipe gets one line.
    """
    if sys.stderr.isatty():
        width = max(20, shutil.get_terminal_size().columns - len(first))
        wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
        parts = [part for line in text.splitlines() for part in wrapper.wrap(line) or [""]]
        click.echo("\r\x1b[K", err=True, nl=False)
        text = f"\n{then}".join(parts)
    click.secho(first + text, err=True, **style)


def _print_row(label: str, text: str) -> None:
    """Print a label and a text."""
    print_line(text, f"{label:<7}", " " * 7)


def _progress_text(found: AttemptSummary) -> str:
    """Return a run's progress as text, such as `40/300, loss 0.412, 5120.3 samples/s`."""
    wrong = dict(found.progress.get("notFinite") or {})
    loss = "" if "loss" in wrong or not found.shown["loss"] else f"loss {found.shown['loss']}"
    since = (f"{name} {one['value']} since step {one['since']} (rank {one['rank']})" for name, one in wrong.items())
    return ", ".join(filter(None, [found.shown["steps"], loss, *since, found.shown["speed"]]))


def _print_failure(files: AttemptFiles, failure: Mapping[str, Any]) -> None:
    """Print the first failure, the last lines of its rank, and which ranks lost a peer because of it."""
    rank, code = failure.get("rank"), failure.get("exitCode")
    who = "the job" if rank is None else f"rank {rank}"
    parts = (who, failure.get("reason"), None if code is None else f"exit code {code}")
    title = f"First failure: {', '.join(filter(None, parts))}"
    click.echo(err=True)
    print_line(title, fg="red", bold=True)
    if (message := failure.get("message") or "") != f"rank {rank} exited with {code}":
        print_line(message)
    for line in (failure.get("logTail") or ())[-LINES_SHOWN:]:
        print_line(line, "  │ ", "  │ ", dim=True)
    others = list(_peer_losses(files, rank))
    for other, line in others[:_OTHERS_SHOWN]:
        print_line(line, f"rank {other} followed: ", "  ")
    if len(others) > _OTHERS_SHOWN:
        print_line(f"and {len(others) - _OTHERS_SHOWN} more followed")


def _peer_losses(files: AttemptFiles, cause: int | None) -> Iterator[tuple[int, str]]:
    """Yield each rank except `cause` whose log reports a lost peer, with that line."""
    for rank, path in files.rank_logs().items():
        if rank == cause:
            continue
        lines = [found.group(0) for line in _last_log_lines(path) if (found := _PEER_LOST.search(line))]
        if lines:
            yield rank, lines[-1]


def _last_log_lines(path: Path) -> list[str]:
    data = b"".join(read_log_from(path, log_tail_position(path, LINES_SHOWN)))
    return data.decode(errors="replace").splitlines()
