"""What `ringtrain run` says at the end: how the job ended, its first failure, and where the logs are."""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.reading import log_tail_position, read_log_from

LINES_SHOWN = 20
_OTHERS_SHOWN = 16
_PEER_LOST = re.compile(r"\bPeerLost\b.*")
_COLOURS = {"Succeeded": "green", "Failed": "red", "Stopped": "magenta"}


def say_end(files: AttemptFiles, outcome: dict[str, Any] | None, took_s: float) -> None:
    """Print on stderr how the job ended. Lines are broken between words only, so that a path can be copied."""
    state = str(outcome["outcome"]) if outcome is not None else "Failed"
    failure = (outcome or {}).get("failure") or {}
    _ending_row("state", click.style(state, _COLOURS.get(state), bold=True))
    if progress := (outcome or {}).get("progress"):
        _ending_row("steps", _ending_steps(progress))
    _ending_row("took", f"{took_s:.0f} s")
    _ending_row("logs", str(files.directory))
    if warning := (outcome or {}).get("warning"):
        say_ending_line(warning, fg="yellow")
    if failure:
        _say_run_failure(files, failure)


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


def _ending_steps(progress: dict[str, Any]) -> str:
    """Where training was: `40/300, loss 0.412, samples/sec 5120.3`."""
    step, total, loss, rate = (progress.get(key) for key in ("step", "totalSteps", "loss", "samplesPerSecond"))
    parts = [f"{step}/{total}" if total else str(step)]
    parts += [f"loss {loss:.4g}"] if loss is not None else []
    for name, found in (progress.get("notFinite") or {}).items():
        parts.append(f"{name} {found['value']} since step {found['since']} (rank {found['rank']})")
    parts += [f"{progress.get('unit')}/sec {rate:{'.1f' if rate >= 1 else '.3g'}}"] if rate is not None else []
    return ", ".join(parts)


def _say_run_failure(files: AttemptFiles, failure: dict[str, Any]) -> None:
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
