"""`ringtrain timeline`: what it makes of a file."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ringtrain_job.cli.main import main


def span(rank: int, category: str, began_ms: float, ended_ms: float, **args: Any) -> dict[str, Any]:
    times = {"ts": 1000 * began_ms, "dur": 1000 * (ended_ms - began_ms)}
    return {"ph": "X", "pid": rank, "tid": 1, "name": category, "cat": category, "args": args} | times


def collective(rank: int, number: int, began_ms: float, ended_ms: float) -> dict[str, Any]:
    return span(rank, "collective", began_ms, ended_ms, set=0, sequence=number)


def output(path: Path, *events: dict[str, Any]) -> str:
    path.write_text(json.dumps(events))
    return CliRunner().invoke(main, ["timeline", str(path)]).output


def test_parts_of_a_step(tmp_path: Path) -> None:
    """Input, forward, backward, what is left of the update, and of that what was waiting for a late rank.

    Rank 1 comes 20 ms after rank 0 to a collective, 10 of which the backward pass of rank 0 hides.
    """
    said = output(
        tmp_path / "file",
        *[span(rank, "step", 0, 100) for rank in range(2)],
        *[span(rank, "step", 100, 200) for rank in range(2)],
        *[span(rank, "forward", 110, 140) for rank in range(2)],
        span(0, "backward", 140, 170), collective(0, 1, 160, 195),
        span(1, "backward", 140, 190), collective(1, 1, 180, 195),
    )  # fmt: skip
    assert said.splitlines() == [
        "rank 0: 1 step of 100 ms: input 10 %, forward 30 %, backward 30 %, update 20 %, waiting for rank 1 10 %",
        "rank 1: 1 step of 100 ms: input 10 %, forward 30 %, backward 50 %, update 10 %",
    ]


@pytest.mark.parametrize("content", ["", "import numpy", "{}", "[1]", '[{"ph": "X"}]', '[{"ph": "X", "pid": "a"}]'])
def test_another_file(tmp_path: Path, content: str) -> None:
    """It is named, and no traceback comes."""
    (tmp_path / "file").write_text(content)
    result = CliRunner().invoke(main, ["timeline", str(tmp_path / "file")])
    assert (result.exit_code, result.output.startswith(f"Error: {tmp_path / 'file'} ")) == (1, True)


def test_a_file_that_was_edited(tmp_path: Path) -> None:
    """Invalid spans are missing, a step without a backward pass has no update, and no time counts twice."""
    steps = [span(0, "step", at, at + 100) for at in (0, 100, 200)]
    wrong = [{**steps[1], "ts": 10**400}, {**steps[1], "pid": -1}, {**steps[1], "dur": "x"}, {**steps[1], "ph": 5}]
    passes = [span(0, "forward", 110, 160), span(0, "forward", 130, 170), span(0, "backward", 150, 190)]
    assert output(tmp_path / "file", *steps, *wrong, *passes, collective(0, 1, 290, 310)) == (
        "rank 0: 2 steps of 100 ms: input 55 %, forward 20 %, backward 20 %, update 5 %\n"
    )


def test_a_run_without_an_optimizer(tmp_path: Path) -> None:
    """Says what a step is."""
    assert "contains no step; call step()" in output(tmp_path / "file", collective(0, 1, 0, 1))
