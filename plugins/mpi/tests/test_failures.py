"""Failures of an MPI job, and the messages about them in its status."""

import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from mpi_jobs import SAVE, MpiGang
from mpi_libraries import ALL, MPICH, OPEN_MPI, OPEN_MPI_5, Library, python
from support.gang import until_ended

from ringtrain.shared.contract import EXIT_BAD_CONFIGURATION

LocalGang = Callable[..., MpiGang]

SLEEP = """
import os, sys, time
from mpi4py import MPI
print("rank", MPI.COMM_WORLD.rank, "is process", os.getpid())
time.sleep(600)
"""


def failure(job: MpiGang, *command: str, settings: Mapping[str, str] = {}) -> Any:
    """The failure in the launcher's termination message, for a job that ends by itself."""
    job.agents()
    launcher = job.launcher(*command, **settings)
    assert launcher.wait() != 0
    message = launcher.message()
    assert message["outcome"] == "Failed"
    return message["failure"]


def programs(directory: Path, **targets: str) -> dict[str, str]:
    """PATH with the system's programs but, of MPI's, only `targets`: name → program."""
    folder = directory / "programs"
    folder.mkdir()
    for name in ("sh", "env", "true", "sleep"):
        (folder / name).symlink_to(shutil.which(name) or name)
    for name, target in targets.items():
        (folder / name).symlink_to(shutil.which(target) or target)
    return {"PATH": str(folder)}


def test_no_mpirun_in_the_image(local_gang: LocalGang, short_path: Path) -> None:
    """The launcher does not wait for workers, and names the package to install."""
    job = local_gang(1, 2, "OpenMPI")
    launcher = job.launcher("mpirun", "true", **programs(short_path))
    assert launcher.wait() == 64
    failure = launcher.message()["failure"]
    assert failure["reason"] == "MpirunNotFound"
    assert "install openmpi-bin" in failure["message"]


@pytest.mark.parametrize(("command", "code"), [("nosuchprogram", 127), ("/etc/passwd", 126)], ids=["absent", "a-file"])
def test_a_launcher_command_that_cannot_be_executed(
    local_gang: LocalGang, short_path: Path, command: str, code: int
) -> None:
    """The reason is CannotStart, which no restart follows; the launcher's log has no traceback."""
    OPEN_MPI.need()
    job = local_gang(1, 2, "OpenMPI")
    job.agents()
    launcher = job.launcher(command, "mpirun", "true")
    assert launcher.wait() == code
    failure = launcher.message()["failure"]
    assert failure["reason"] == "CannotStart"
    assert f"the launcher's command {command} cannot be executed: " in failure["message"]
    assert "Traceback" not in launcher.err()


def test_another_mpi_in_the_image(local_gang: LocalGang, short_path: Path) -> None:
    """spec.mpi.implementation names one MPI, the image has another."""
    OPEN_MPI.need()
    job = local_gang(1, 2, "MPICH")
    launcher = job.launcher("mpirun", "true", **programs(short_path, mpirun="mpirun.openmpi"))
    assert launcher.wait() == 64
    failure = launcher.message()["failure"]
    assert failure["reason"] == "WrongImplementation"
    assert "spec.mpi.implementation is MPICH, but the launcher's image has" in failure["message"]
    assert "OpenMPI" in failure["message"]


def test_another_number_of_ranks_than_declared(local_gang: LocalGang) -> None:
    """-np that is not workers x slots is refused before any worker is there."""
    OPEN_MPI.need()
    launcher = local_gang(2, 2, "OpenMPI").launcher("mpirun", "-np", "3", "true")
    assert launcher.wait() == 64
    failure = launcher.message()["failure"]
    assert failure["reason"] == "SlotsMismatch"
    assert "starts 3 ranks (-np), but the job declares 4" in failure["message"]


def test_a_script_that_starts_fewer_ranks(local_gang: LocalGang) -> None:
    """The ranks of a script's own mpirun are counted: fewer than declared are a failure with a message."""
    OPEN_MPI.need()
    found = failure(local_gang(2, 1, "OpenMPI"), "sh", "-c", "mpirun -np 1 true")
    assert found["reason"] == "SlotsMismatch"
    assert "a world of 1 rank, but the job declares 2 (2 workers x 1 slot)" in found["message"]


def test_a_script_that_starts_no_ranks(local_gang: LocalGang) -> None:
    """A launcher's command that ends well without any rank is not a success."""
    OPEN_MPI.need()
    found = failure(local_gang(1, 2, "OpenMPI"), "sh", "-c", "echo done")
    assert found["reason"] == "WorldIncomplete"
    assert "no rank has checked in" in found["message"]


def test_a_rank_of_a_second_mpirun_fails(local_gang: LocalGang) -> None:
    """The ranks of the first one ended well; the one that failed is named nevertheless."""
    OPEN_MPI.need()
    job = local_gang(2, 1, "OpenMPI", RINGTRAIN_MPI_REQUIRE_INIT="0")
    found = failure(job, "sh", "-c", "mpirun true && mpirun sh -c 'echo bad sample; test $RANK = 0 || exit 3'")
    assert (found["reason"], found["rank"], found["exitCode"]) == ("RankFailed", 1, 3)
    assert found["logTail"] == ["bad sample"]


def test_two_mpiruns_at_once(local_gang: LocalGang, short_path: Path) -> None:
    """More simultaneous ranks than declared are refused; ranks of the two commands are not confused."""
    OPEN_MPI.need()
    job = local_gang(1, 1, "OpenMPI", RINGTRAIN_MPI_REQUIRE_INIT="0")
    wait = f"while ! test -e {short_path}/runs; do sleep 0.05; done"
    first = f"mpirun sh -c 'touch {short_path}/runs; sleep 600'"
    found = failure(job, "sh", "-c", f"{first} & {wait}; mpirun true; wait")
    assert found["reason"] == "SlotsMismatch"
    assert "mpirun started rank 0 while rank 0 of another mpirun is running" in found["message"]


def test_a_script_that_leaves_a_process_behind(local_gang: LocalGang, short_path: Path) -> None:
    """The end of the script ends the job, even if a process that it started holds its output open."""
    OPEN_MPI.need()
    job = local_gang(1, 1, "OpenMPI", RINGTRAIN_MPI_REQUIRE_INIT="0")
    job.agents()
    launcher = job.launcher("sh", "-c", f"sleep 600 & echo $! > {short_path}/left; mpirun true")
    assert launcher.wait() == 0
    with suppress(psutil.NoSuchProcess):
        until_ended([psutil.Process(int((short_path / "left").read_text()))])


@pytest.mark.parametrize("library", ALL)
def test_a_program_that_never_calls_mpi_init(library: Any, local_gang: LocalGang) -> None:
    """A failure if the job requires MPI_Init; otherwise a success with a warning that no rank called it."""
    variables = {**library.need(), "RINGTRAIN_MPI_REQUIRE_INIT": "1"}
    found = failure(local_gang(2, 1, library.implementation, **variables), "mpirun", "true")
    assert found["reason"] == "NoMpiInit"
    assert "set spec.mpi.requireInit: false if that is intended" in found["message"]


@pytest.mark.parametrize("library", ALL)
def test_mpirun_as_a_mere_starter(library: Library, local_gang: LocalGang) -> None:
    """Ranks may communicate without MPI: a success, with a warning that names no rank."""
    job = local_gang(2, 1, library.implementation, **library.need())
    job.agents()
    launcher = job.launcher("mpirun", "sh", "-c", "echo trained")
    assert launcher.wait() == 0
    message = launcher.message()
    assert message["outcome"] == "Succeeded"
    assert "none of the 2 ranks called MPI_Init: they communicated by other means" in message["warning"]


@pytest.mark.parametrize("library", [OPEN_MPI, OPEN_MPI_5])
def test_a_program_of_mpi_has_no_warning(library: Library, local_gang: LocalGang) -> None:
    """The ranks have called MPI_Init."""
    job = local_gang(2, 1, library.implementation, **library.need())
    job.agents()
    launcher = job.launcher("mpirun", *python("from mpi4py import MPI\nprint(MPI.COMM_WORLD.rank)"))
    assert launcher.wait() == 0
    assert "warning" not in launcher.message()


def test_a_program_that_need_not_call_mpi_init(local_gang: LocalGang) -> None:
    """The job succeeds without a warning."""
    OPEN_MPI.need()
    job = local_gang(2, 1, "OpenMPI", RINGTRAIN_MPI_REQUIRE_INIT="0")
    job.agents()
    launcher = job.launcher("mpirun", "sh", "-c", "echo rank $RANK of $WORLD_SIZE")
    assert launcher.wait() == 0
    assert [job.rank_log(rank) for rank in range(2)] == ["rank 0 of 2\n", "rank 1 of 2\n"]
    assert "warning" not in launcher.message()


@pytest.mark.parametrize("library", [OPEN_MPI, OPEN_MPI_5], ids=["openmpi", "openmpi5"])
def test_parameters_that_the_user_wants_to_see(library: Library, local_gang: LocalGang, short_path: Path) -> None:
    """mpi_show_mca_params, by which a call of MPI_Init is seen otherwise: the rank shows them, and ended well."""
    job = local_gang(1, 1, library.implementation, **library.need_mpi4py(short_path))
    job.agents()
    launcher = job.launcher("mpirun", "--mca", "mpi_show_mca_params", "enviro", *python("from mpi4py import MPI"))
    assert launcher.wait() == 0, launcher.err()
    assert "mpi_show_mca_params=enviro" in job.rank_log(0)


def test_ranks_that_the_user_has_placed(local_gang: LocalGang) -> None:
    """ringtrain.init() on a rank at an unexpected place reports it before the other ranks time out."""
    OPEN_MPI.need()
    job = local_gang(2, 2, "OpenMPI")
    found = failure(job, "mpirun", "--map-by", "node", *python("import ringtrain; ringtrain.init()"))
    assert found["rank"] in (1, 2)
    assert "on another worker than the job assigns to it" in found["logTail"][-1]


def test_a_program_of_another_mpi(local_gang: LocalGang, short_path: Path) -> None:
    """Started by the wrong mpirun, each rank is a world of one and ends well: a failure that names both MPIs."""
    OPEN_MPI.need()
    source = short_path / "hello.c"
    source.write_text("#include <mpi.h>\nint main(int c, char **v) { MPI_Init(&c, &v); return MPI_Finalize(); }\n")
    program = MPICH.compile(source, short_path / "hello")
    found = failure(local_gang(2, 1, "OpenMPI"), "mpirun", str(program))
    assert found["reason"] == "WrongImplementation"
    assert "the program uses libmpich.so.12 (MPICH), but the mpirun of OpenMPI started it" in found["message"]


@pytest.mark.parametrize("library", [pytest.param(OPEN_MPI, id="openmpi"), pytest.param(MPICH, id="mpich")])
def test_no_mpi_on_a_worker(library: Any, local_gang: LocalGang, short_path: Path) -> None:
    """The launcher's image has MPI, the worker's has not: the error is that of the worker's shell.

    Open MPI 5 names its daemon by a path, like MPICH; here that file exists.
    """
    job = local_gang(1, 2, library.implementation, **library.need())
    bare = programs(short_path)
    if library is MPICH:  # Hydra names its proxy by the path that it has in the launcher
        elsewhere = short_path / "mpich"
        elsewhere.mkdir()
        shutil.copy2(shutil.which(library.mpirun) or "", elsewhere / "mpirun.mpich")
        launcher = job.launcher(str(elsewhere / "mpirun.mpich"), "true")
    else:
        launcher = job.launcher("mpirun", "true")
    job.agents(**bare)
    assert launcher.wait() != 0
    failure = launcher.message()["failure"]
    assert failure["reason"] == "LauncherFailed"
    assert "not found" in failure["message"] + " ".join(failure["logTail"])


@pytest.mark.parametrize(
    ("mode", "code", "says"),
    [
        pytest.param(None, 127, "No such file or directory", id="absent"),
        pytest.param(0o644, 126, "Permission denied", id="not-executable"),
        pytest.param(0o755, 126, "Exec format error", id="no-program"),
    ],
)
@pytest.mark.parametrize("settings", [{}, {"RINGTRAIN_ELASTIC": "Restart"}], ids=["fixed", "elastic"])
def test_a_program_that_cannot_be_executed(
    local_gang: LocalGang, tmp_path: Path, mode: int | None, code: int, says: str, settings: dict[str, str]
) -> None:
    """The reason is that of ring jobs: no other attempt would find the program."""
    OPEN_MPI.need()
    program = str(tmp_path / "program")
    if mode is not None:
        Path(program).write_bytes(b"\1\2\3")
        Path(program).chmod(mode)
    found = failure(local_gang(2, 1, "OpenMPI", **settings), "mpirun", program)
    assert (found["reason"], found["exitCode"]) == ("CannotStart", code)
    assert "three times" not in found["message"]
    assert found["logTail"] == [f"{program}: {says}"]


@pytest.mark.parametrize("library", ALL)
def test_a_rank_that_is_killed(library: Any, gang: Callable[..., MpiGang], short_path: Path) -> None:
    """mpirun is stopped, the attempt fails with that rank named, and nothing is left on any host."""
    job = gang(2, 2, library.implementation, RINGTRAIN_TIMEOUT="20", **library.need_mpi4py(short_path))
    agents = job.agents()
    launcher = job.launcher("mpirun", *python(SLEEP))
    for rank in range(4):
        job.wait_for_line(rank, "is process")
    ranks = [psutil.Process(int(job.rank_log(rank).split()[-1])) for rank in range(4)]
    ranks[3].kill()
    assert launcher.wait() == 128 + signal.SIGKILL
    found = launcher.message()["failure"]
    assert (found["reason"], found["rank"], found["pod"]) == ("RankFailed", 3, "job-worker-1")
    assert [agent.wait() for agent in agents] == [75, 128 + signal.SIGKILL]
    until_ended(ranks)


# Which pods are asked does not depend on the MPI: two of them show it.
@pytest.mark.parametrize(
    ("asked", "library"),
    [
        pytest.param(asked, *library.values, id=f"{asked}-{library.id}")
        for asked, libraries in (("launcher", ALL), ("worker", ALL[::3]), ("all", ALL[1:3]))
        for library in libraries
    ],
)
def test_ranks_save_when_they_are_asked_to_stop(asked: str, library: Any, local_gang: LocalGang) -> None:
    """A suspended job, or an evicted pod: they have the grace of their pods, not mpirun's second."""
    job = local_gang(2, 1, library.implementation, RINGTRAIN_MPI_REQUIRE_INIT="0", **library.need())
    agents = job.agents()
    (job.directory / "save.py").write_text(SAVE)
    script = f"{sys.executable} {job.directory}/save.py | cat; echo end"
    launcher = job.launcher("mpirun", "bash", "-c", script)
    for rank in range(2):
        job.wait_for_line(rank, "trains")
    for pod in [launcher, *agents] if asked == "all" else [launcher if asked == "launcher" else agents[0]]:
        pod.send(signal.SIGTERM)
    assert launcher.wait() == 128 + signal.SIGTERM
    assert [job.rank_log(rank).split() for rank in range(2)] == [["trains", "SIGTERM", "saved", "end"]] * 2


@pytest.mark.parametrize("library", ALL)
def test_a_worker_that_is_killed(library: Any, local_gang: LocalGang, short_path: Path) -> None:
    """All processes of the pod are killed, as by a lack of memory: this is the cause, not the mpirun that ends because
    of it."""
    job = local_gang(2, 1, library.implementation, **library.need_mpi4py(short_path))
    agents = job.agents()
    launcher = job.launcher("mpirun", *python(SLEEP))
    for rank in range(2):
        job.wait_for_line(rank, "is process")
    inside = psutil.Process(agents[1].pid).children(recursive=True)
    agents[1].kill()
    for process in inside:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert launcher.wait() == 75
    found = launcher.message()["failure"]
    assert (found["reason"], found["pod"]) == ("AgentLost", "job-worker-1"), found
    assert "Traceback" not in launcher.err()


@pytest.mark.parametrize("library", ALL)
def test_a_rank_that_aborts(library: Any, local_gang: LocalGang, short_path: Path) -> None:
    """MPI_Abort ends all ranks; the failure names the calling rank, its code and its message."""
    script = "from mpi4py import MPI\nworld = MPI.COMM_WORLD\nworld.Barrier()\nif world.rank == 2:\n"
    script += "    print('bad sample')\n    world.Abort(5)\nworld.Barrier()\n"
    job = local_gang(2, 2, library.implementation, **library.need_mpi4py(short_path))
    found = failure(job, "mpirun", *python(script))
    assert (found["reason"], found["rank"], found["exitCode"]) == ("RankFailed", 2, 5)
    assert "bad sample" in found["logTail"]


@pytest.mark.parametrize("library", ALL)
def test_a_host_that_vanishes(library: Any, gang: Callable[..., MpiGang], short_path: Path) -> None:
    """The network of the host is disconnected without any message. The launcher notices by its heartbeat, and names
    host and ranks."""
    job = gang(2, 2, library.implementation, RINGTRAIN_TIMEOUT="12", **library.need_mpi4py(short_path))
    job.agents()
    launcher = job.launcher("mpirun", *python(SLEEP))
    for rank in range(4):
        job.wait_for_line(rank, "is process")
    job.network.cut(job.network.hosts[2])
    assert launcher.wait() == 75
    found = launcher.message()["failure"]
    assert found["reason"] == "AgentLost"
    assert "worker 1 (pod job-worker-1 on node node-2) no longer answers" in found["message"]
    assert "rank(s) 2, 3 are lost" in found["message"]


def test_a_script_that_names_mpirun_by_its_path(local_gang: LocalGang) -> None:
    """`/usr/bin/mpirun` in a shell's text starts the ranks as the one in PATH does."""
    OPEN_MPI.need()
    job = local_gang(2, 1, "OpenMPI", RINGTRAIN_MPI_REQUIRE_INIT="0")
    job.agents()
    launcher = job.launcher("sh", "-c", f"set -e; {shutil.which('mpirun.openmpi')} true")
    assert launcher.wait() == 0
    assert launcher.message()["ranksSucceeded"] == 2


def test_an_mpirun_that_is_not_ours(local_gang: LocalGang) -> None:
    """A script that puts its own folder before ours in PATH is refused before a rank runs, and not tried again."""
    OPEN_MPI.need()
    job = local_gang(2, 1, "OpenMPI", RINGTRAIN_MPI_REQUIRE_INIT="0")
    job.agents()
    marker = job.directory / "a-rank-ran"
    launcher = job.launcher("sh", "-c", f"PATH=/usr/bin:/bin; mpirun.openmpi touch {marker}")
    assert launcher.wait() == EXIT_BAD_CONFIGURATION
    assert "write mpirun without its folder" in launcher.message()["failure"]["message"]
    assert not marker.exists()
