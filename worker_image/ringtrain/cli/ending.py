"""What `ringtrain run` says at the end: how the job ended, its first failure, and where the logs are."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ringtrain.logs.layout import AttemptFiles
from ringtrain.logs.reading import read_from, tail_position

LINES_SHOWN = 20
_OTHERS_SHOWN = 16
_PEER_LOST = re.compile(r"\bPeerLost\b.*")
_COLOURS = {"Succeeded": "green", "Failed": "red", "Stopped": "magenta"}


def read_outcome(files: AttemptFiles) -> dict[str, Any] | None:
    """The outcome that the launcher left; None when it ended before there was one."""
    try:
        found = json.loads(files.outcome.read_text())["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def say_end(files: AttemptFiles, outcome: dict[str, Any] | None, took_s: float) -> None:
    """Print on stderr how the job ended; no line is broken, so that a path can be copied."""
    state = str(outcome["outcome"]) if outcome is not None else "Failed"
    failure = (outcome or {}).get("failure") or {}
    _row("state", click.style(state, _COLOURS.get(state), bold=True))
    _row("took", f"{took_s:.0f} s")
    _row("logs", str(files.directory))
    if failure:
        _say_failure(files, failure)


def _row(label: str, text: str) -> None:
    click.echo(f"{label:<7}{text}", err=True)


def _say_failure(files: AttemptFiles, failure: dict[str, Any]) -> None:
    rank, code = failure.get("rank"), failure.get("exitCode")
    who = "the job" if rank is None else f"rank {rank}"
    title = f"\nFirst failure: {who}, {failure['reason']}" + (f", exit code {code}" if code is not None else "")
    click.secho(title, fg="red", bold=True, err=True)
    click.echo(failure.get("message") or "", err=True)
    for line in (failure.get("logTail") or ())[-LINES_SHOWN:]:
        click.secho(f"  │ {line}", dim=True, err=True)
    others = list(_consequences(files, rank))
    for other, line in others[:_OTHERS_SHOWN]:
        click.echo(f"rank {other} followed: {line}", err=True)
    if len(others) > _OTHERS_SHOWN:
        click.echo(f"and {len(others) - _OTHERS_SHOWN} more ranks followed", err=True)


def _consequences(files: AttemptFiles, cause: int | None) -> Iterator[tuple[int, str]]:
    """The other ranks that lost a peer, each with the line that says so."""
    for path in sorted(files.directory.glob("rank-*.log")):
        rank = int(path.stem.removeprefix("rank-"))
        if rank == cause:
            continue
        lines = [found.group(0) for line in _last_lines(path) if (found := _PEER_LOST.search(line))]
        if lines:
            yield rank, lines[-1]


def _last_lines(path: Path) -> list[str]:
    data = b"".join(read_from(path, tail_position(path, LINES_SHOWN)))
    return data.decode(errors="replace").splitlines()
