"""A program that starts ranks itself is refused as a rank's program, before anything runs."""

from typing import Any

import pytest
from support.jobs import job

from ringtrain_operator.errors import SpecInvalid
from ringtrain_operator.spec.parse import parse_job


def running(command: list[str], slots: int = 2, **spec: Any) -> dict[str, Any]:
    """A job with this command."""
    made = job(slotsPerWorker=slots, **spec)
    made["spec"]["worker"]["template"]["spec"]["containers"][0]["command"] = command
    return made


def split(command: list[str]) -> dict[str, Any]:
    """The same job, with all but the program's name as arguments."""
    made = running(command[:1])
    made["spec"]["worker"]["template"]["spec"]["containers"][0]["args"] = command[1:]
    return made


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["torchrun", "--nproc_per_node=2", "train.py"], "torchrun"),
        (["/opt/bin/torchrun", "--standalone", "train.py"], "torchrun"),
        (["python", "-u", "-m", "torch.distributed.run", "train.py"], "torchrun"),
        (["bash", "-lc", "exec torchrun train.py --lr $LR"], "torchrun"),
        (["accelerate", "launch", "train.py"], "accelerate launch"),
        (["deepspeed", "train.py"], "deepspeed"),
        (["mpirun", "-np", "2", "python", "train.py"], "set spec.backend: mpi"),
        (["horovodrun", "-np", "2", "python", "train.py"], "horovodrun"),
    ],
)
def test_a_launcher_is_refused(command: list[str], named: str) -> None:
    """The message names the launcher and the way out; arguments count as the command's."""
    for made in (running(command), split(command)):
        with pytest.raises(SpecInvalid) as refused:
            parse_job(made)
        assert named in str(refused.value)
        assert "write the program" in str(refused.value)


@pytest.mark.parametrize(
    "command",
    [
        ["python", "train.py", "torchrun"],
        ["python", "-m", "train", "-m", "torch.distributed.run"],
        ["torchrun", "--nnodes=2", "--rdzv-endpoint=a:1", "train.py"],
        ["accelerate", "env"],
        ["bash", "-c", "echo 'torchrun"],
    ],
)
def test_what_is_no_launcher_of_its_own_world(command: list[str]) -> None:
    """Launchers that are told of each other make one world."""
    parse_job(running(command))


def test_one_rank_may_be_a_launcher() -> None:
    """It is the whole world."""
    made = running(["torchrun", "--nproc-per-node=4", "train.py"], slots=1)
    made["spec"]["worker"]["replicas"] = 1
    parse_job(made)
