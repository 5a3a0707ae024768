"""`ringtrain run` refuses a program that starts ranks itself, before it starts anything."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ringtrain.cli.checks import check_launcher
from ringtrain.cli.run import run


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc_per_node=2 train.py",
        "python -u -m torch.distributed.run train.py",
        "accelerate launch train.py",
        "deepspeed train.py",
        "/usr/bin/mpirun -np 2 python train.py",
        "horovodrun -np 2 python train.py",
    ],
)
def test_a_launcher_is_refused(command: str, tmp_path: Path) -> None:
    """The message says what to write, and no directory of logs is made."""
    logs = tmp_path / "runs"
    result = CliRunner().invoke(run, ["-np", "2", "--log-dir", str(logs), *command.split()])
    assert result.exit_code == 2
    assert "write the program that it starts: ringtrain run -np 2 python train.py" in result.output
    assert not logs.exists()


@pytest.mark.parametrize(
    ("ranks", "command"),
    [
        (1, "torchrun --nproc_per_node=2 train.py"),
        (2, "torchrun --nnodes=2 --rdzv-endpoint=a:1 train.py"),
        (2, "accelerate env"),
        (2, "python train.py -m torch.distributed.run"),
    ],
)
def test_what_makes_one_world(ranks: int, command: str) -> None:
    """One rank is the whole world; launchers that are told of each other make one."""
    try:
        check_launcher(ranks, tuple(command.split()))
    except click.UsageError as exc:
        pytest.fail(exc.message)
