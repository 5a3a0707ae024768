"""The summary that `ringtrain run` prints: how the run ended, its first failure, and where the logs are."""

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


def say_end(files: AttemptFiles) -> None:
    """Print on stderr how the run ended. Lines are broken between words only, so that a path can be copied."""
    found = summarize_attempt(files)
    shown = found.shown
    _ending_row("state", click.style(found.state, STATE_COLOURS.get(found.state), bold=True))
    if steps := _ending_steps(found):
        _ending_row("steps", steps)
    if shown["took"]:
        _ending_row("took", shown["took"])
    _ending_row("run", files.directory.parent.name)
    _ending_row("logs", str(files.directory))
    if found.warning:
        say_ending_line(found.warning, fg="yellow")
    if found.failure:
        _say_run_failure(files, found.failure)


def say_ending_line(text: str, first: str = "", then: str = "", **style: Any) -> None:
    """Print `text` on stderr behind `first`, on a terminal in the place of what stands on the line; `then`: behind
    what a terminal begins each further line. A pipe gets one line."""
    if sys.stderr.isatty():
        width = max(20, shutil.get_terminal_size().columns - len(first))
        wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
        parts = [part for line in text.splitlines() for part in wrapper.wrap(line) or [""]]
        click.echo("\r\x1b[K", err=True, nl=False)
        text = f"\n{then}".join(parts)
    click.secho(first + text, err=True, **style)


def _ending_row(label: str, text: str) -> None:
    say_ending_line(text, f"{label:<7}", " " * 7)


def _ending_steps(found: AttemptSummary) -> str:
    """Return where training was: `40/300, loss 0.412, 5120.3 samples/s`."""
    wrong = dict(found.progress.get("notFinite") or {})
    loss = "" if "loss" in wrong or not found.shown["loss"] else f"loss {found.shown['loss']}"
    since = (f"{name} {one['value']} since step {one['since']} (rank {one['rank']})" for name, one in wrong.items())
    return ", ".join(filter(None, [found.shown["steps"], loss, *since, found.shown["speed"]]))


def _say_run_failure(files: AttemptFiles, failure: Mapping[str, Any]) -> None:
    rank, code = failure.get("rank"), failure.get("exitCode")
    who = "the job" if rank is None else f"rank {rank}"
    title = f"First failure: {who}, {failure['reason']}" + (f", exit code {code}" if code is not None else "")
    click.echo(err=True)
    say_ending_line(title, fg="red", bold=True)
    if (message := failure.get("message") or "") != f"rank {rank} exited with {code}":
        say_ending_line(message)
    for line in (failure.get("logTail") or ())[-LINES_SHOWN:]:
        say_ending_line(line, "  │ ", "  │ ", dim=True)
    others = list(_consequences(files, rank))
    for other, line in others[:_OTHERS_SHOWN]:
        say_ending_line(line, f"rank {other} followed: ", "  ")
    if len(others) > _OTHERS_SHOWN:
        say_ending_line(f"and {len(others) - _OTHERS_SHOWN} more followed")


def _consequences(files: AttemptFiles, cause: int | None) -> Iterator[tuple[int, str]]:
    """The other ranks that lost a peer, each with the line that says so."""
    for path in sorted(files.directory.glob("rank-*.log")):
        rank = int(path.stem.removeprefix("rank-"))
        if rank == cause:
            continue
        lines = [found.group(0) for line in _last_log_lines(path) if (found := _PEER_LOST.search(line))]
        if lines:
            yield rank, lines[-1]


def _last_log_lines(path: Path) -> list[str]:
    data = b"".join(read_log_from(path, log_tail_position(path, LINES_SHOWN)))
    return data.decode(errors="replace").splitlines()
