"""A program that starts ranks itself is refused as a rank's program, before anything runs."""

from typing import Any

import pytest
from support.jobs import job
from support.launchers import LAUNCHERS, OTHERS

from ringtrain_operator.errors import Invalid
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


@pytest.mark.parametrize(("command", "named"), LAUNCHERS)
def test_a_launcher_is_refused(command: list[str], named: str) -> None:
    """The message names the launcher and the way out; arguments count as the command's."""
    for made in (running(command), split(command)):
        with pytest.raises(Invalid) as refused:
            parse_job(made)
        assert f"starts {named}" in str(refused.value)
        assert ("set spec.backend: mpi" in str(refused.value)) == (named in ("mpirun", "horovodrun"))
        assert "write the program" in str(refused.value)


@pytest.mark.parametrize("command", OTHERS)
def test_what_is_no_launcher_of_its_own_world(command: list[str]) -> None:
    """Launchers that are told of each other make one world."""
    parse_job(running(command))


def test_one_rank_may_be_a_launcher() -> None:
    """It is the whole world."""
    made = running(["torchrun", "--nproc-per-node=4", "train.py"], slots=1)
    made["spec"]["worker"]["replicas"] = 1
    parse_job(made)


def test_the_launcher_of_a_ring_job_has_no_command() -> None:
    """A job of MPI without `backend: mpi` would succeed although its mpirun never ran."""
    made = running(["python", "train.py"], launcher={"template": {"spec": {"containers": [{"command": ["mpirun"]}]}}})
    with pytest.raises(Invalid, match=r"containers\[0\].command: is for spec.backend: mpi"):
        parse_job(made)
    parse_job(made, templates=False)  # as for a job that was accepted before
