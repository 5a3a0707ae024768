"""An elastic MPI job: each generation has a separate mpirun, and pods stay."""

import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from mpi_jobs import SAVE, MpiGang
from mpi_libraries import ALL, OPEN_MPI, python
from support.gang import PodProcess, until, until_ended

TRAIN = """
import os, time
from mpi4py import MPI
world, formation = MPI.COMM_WORLD, os.environ["RINGTRAIN_FORMATION"]
total = world.allreduce(1)
print("formation", formation, "rank", world.rank, "of", total, "pid", os.getpid(), flush=True)
while not os.path.exists(os.environ["TMPDIR"] + "/../end"):
    time.sleep(0.05)
"""
ELASTIC = {"RINGTRAIN_ELASTIC": "Restart", "RINGTRAIN_ELASTIC_JOIN_DELAY": "0.2", "RINGTRAIN_TIMEOUT": "12"}


def worlds(job: MpiGang, slot: int) -> list[tuple[int, ...]]:
    """Formation, rank, size and process of each process of a slot."""
    found = re.findall(r"^formation (\d+) rank (\d+) of (\d+) pid (\d+)$", job.rank_log(slot), re.M)
    return [tuple(map(int, one)) for one in found]


def until_formed(job: MpiGang, launcher: PodProcess, formation: int, slots: list[int]) -> list[int]:
    """Wait for a generation of `slots`, by rank; return its processes."""

    def formed() -> bool:
        newest = [worlds(job, slot)[-1:] for slot in slots]
        return [one[0][:3] for one in newest if one] == [(formation, rank, len(slots)) for rank in range(len(slots))]

    try:
        until(f"formation {formation} of {slots}", formed)
    except AssertionError as exc:
        said = [(slot, job.rank_log(slot)) for slot in slots]
        raise AssertionError(f"{exc}: {launcher.err()} {said}") from None
    return [worlds(job, slot)[-1][3] for slot in slots]


@pytest.mark.parametrize("library", ALL)
def test_mpirun_is_run_anew_over_the_pods_that_live(
    library: Any, local_gang: Callable[..., MpiGang], short_path: Path
) -> None:
    """All ranks run after one was killed, fewer after a pod was lost, and all when a new pod is available."""
    settings = {**ELASTIC, "RINGTRAIN_ELASTIC_REPLACE_TIMEOUT": "1", **library.need_mpi4py(short_path)}
    job = local_gang(2, 2, library.implementation, **settings)
    agents = job.agents()
    launcher = job.launcher("mpirun", *python(TRAIN))
    first = until_formed(job, launcher, 1, [0, 1, 2, 3])
    former = [psutil.Process(pid) for pid in first]
    former[1].kill()
    second = until_formed(job, launcher, 2, [0, 1, 2, 3])
    assert set(first).isdisjoint(second)
    until_ended(former)
    agents[0].kill()
    until_formed(job, launcher, 3, [2, 3])
    assert agents[1].process.poll() is None
    job.agent(0)
    until_formed(job, launcher, 4, [0, 1, 2, 3])
    (short_path / "end").touch()
    assert launcher.wait() == 0, launcher.err()
    message = launcher.message()
    assert (message["outcome"], message["worldSize"], message["ranksSucceeded"]) == ("Succeeded", 4, 4)


@pytest.mark.parametrize("library", ALL)
def test_ranks_save_when_a_person_stops_the_job(library: Any, local_gang: Callable[..., MpiGang]) -> None:
    """They have the grace period of their pods: mpirun, which would kill them after a second, is stopped after them."""
    settings = {**ELASTIC, "RINGTRAIN_TIMEOUT": "60", "RINGTRAIN_MPI_REQUIRE_INIT": "0", **library.need()}
    job = local_gang(2, 1, library.implementation, **settings)
    job.agents()
    (job.directory / "save.py").write_text(SAVE)
    launcher = job.launcher("mpirun", sys.executable, f"{job.directory}/save.py")
    for rank in range(2):
        job.wait_for_line(rank, "trains")
    launcher.send(signal.SIGINT)
    assert launcher.wait() == 128 + signal.SIGTERM, launcher.err()
    assert [job.rank_log(rank).split() for rank in range(2)] == [["trains", "SIGTERM", "saved"]] * 2


def test_a_script_that_calls_mpirun_is_run_anew(local_gang: Callable[..., MpiGang], short_path: Path) -> None:
    """The script is restarted like mpirun itself; the launcher's replacements in PATH exist already."""
    settings = {**ELASTIC, **OPEN_MPI.need_mpi4py(short_path)}
    job = local_gang(1, 2, "OpenMPI", **settings)
    job.agents()
    launcher = job.launcher("sh", "-c", 'set -e; mpirun "$@"', "sh", *python(TRAIN))
    first = until_formed(job, launcher, 1, [0, 1])
    psutil.Process(first[1]).kill()
    until_formed(job, launcher, 2, [0, 1])
    (short_path / "end").touch()
    assert launcher.wait() == 0, launcher.err()


def test_a_command_that_fails_before_any_rank(local_gang: Callable[..., MpiGang], short_path: Path) -> None:
    """The attempt fails at once, because another generation would not help."""
    OPEN_MPI.need()
    job = local_gang(1, 1, "OpenMPI", **ELASTIC)
    job.agents()
    launcher = job.launcher("sh", "-c", "exit 5")
    assert launcher.wait() == 5
    assert launcher.message()["failure"]["reason"] == "LauncherFailed"


@pytest.mark.parametrize(
    ("settings", "command", "message"),
    [
        ({"RINGTRAIN_ELASTIC": "Shrink"}, ("mpirun", "true"), "RINGTRAIN_ELASTIC=Shrink and RINGTRAIN_MPI"),
        ({}, ("mpirun", "-np", "2", "true"), "in an elastic job the number changes"),
    ],
    ids=["living", "np"],
)
def test_what_an_mpi_job_cannot_be_told(
    local_gang: Callable[..., MpiGang], settings: dict[str, str], command: tuple[str, ...], message: str
) -> None:
    """The launcher reports the error before any worker is running."""
    OPEN_MPI.need()
    job = local_gang(1, 2, "OpenMPI", **{**ELASTIC, **settings})
    launcher = job.launcher(*command)
    assert launcher.wait() == 64
    assert message in launcher.message()["failure"]["message"]
