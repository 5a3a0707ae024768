"""`ringtrain run` refuses a program that starts ranks itself, before it starts anything."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from support.launchers import LAUNCHERS, OTHERS

from ringtrain_job.cli.checks import check_launcher
from ringtrain_job.cli.run import run


@pytest.mark.parametrize(("command", "named"), LAUNCHERS)
def test_a_launcher_is_refused(command: list[str], named: str, tmp_path: Path) -> None:
    """The message says what to write, and no directory of logs is made."""
    logs = tmp_path / "runs"
    result = CliRunner().invoke(run, ["-np", "2", "--log-dir", str(logs), *command])
    assert result.output.count(f"{named} starts ranks itself") == 1
    assert result.exit_code == 2
    assert "pass only the program that it starts: ringtrain run -np 2 python train.py" in result.output
    assert not logs.exists()


@pytest.mark.parametrize(("ranks", "command"), [(1, ["torchrun", "train.py"]), *((2, command) for command in OTHERS)])
def test_what_makes_one_world(ranks: int, command: list[str]) -> None:
    """One rank is the whole world; launchers that are told of each other make one."""
    try:
        check_launcher(ranks, command)
    except click.UsageError as exc:
        pytest.fail(exc.message)
