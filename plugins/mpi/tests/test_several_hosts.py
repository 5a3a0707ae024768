"""mpirun over several hosts that run our agent and nothing else: no sshd, no names, no keys."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mpi_jobs import MpiGang
from mpi_libraries import ALL, INTEL_MPI, MPICH, OPEN_MPI, Library, python
from support.namespaces import why_no_users

# The launcher lets a container's root run mpirun; here that must not be what helps.
NOT_AS_ROOT = {f"{family}_ALLOW_RUN_AS_ROOT": "0" for family in ("OMPI", "PRTE")}
ALLREDUCE = """
import socket
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
total = np.empty(1000)
world.Allreduce(np.full(1000, world.rank + 1.0), total)
print("rank", world.rank, "of", world.size, "on", socket.gethostname(), "sum", total.min(), total.max())
"""


@pytest.mark.parametrize("library", ALL)
def test_four_ranks_add_up_over_all_hosts(library: Library, gang: Callable[..., MpiGang], short_path: Path) -> None:
    """Every rank is on its own worker's host, all see one world, and each one's output is in its own log."""
    job = gang(4, 1, library.implementation, **library.need_mpi4py(short_path))
    agents = job.agents()
    launcher = job.launcher("mpirun", *python(ALLREDUCE))

    assert launcher.wait() == 0, launcher.err()
    assert [agent.wait() for agent in agents] == [0] * 4
    message = launcher.message()
    assert (message["outcome"], message["worldSize"], message["ranksSucceeded"]) == ("Succeeded", 4, 4)
    for rank in range(4):
        host = job.network.hosts[1 + rank].name
        assert job.rank_log(rank) == f"rank {rank} of 4 on {host} sum 10.0 10.0\n"


@pytest.mark.parametrize("library", ALL)
def test_the_launcher_runs_ranks_too(library: Library, gang: Callable[..., MpiGang], short_path: Path) -> None:
    """With runLauncherAsWorker the first ranks of the world run on the launcher's host."""
    job = gang(1, 2, library.implementation, **library.need_mpi4py(short_path))
    job.with_launcher_as_worker()
    job.agents()
    launcher = job.launcher("mpirun", *python(ALLREDUCE))

    assert launcher.wait() == 0, launcher.err()
    for rank in range(4):
        host = job.network.hosts[rank // 2].name
        assert job.rank_log(rank) == f"rank {rank} of 4 on {host} sum 10.0 10.0\n"


@pytest.mark.parametrize("library", ALL)
def test_workers_that_share_one_address(library: Library, local_gang: Callable[..., MpiGang], short_path: Path) -> None:
    """Workers may share an address under hostNetwork on one node, or with `dtj local`: every rank still runs in its own
    worker. Open MPI's ranks get the message that collectives by node are off."""
    job = local_gang(2, 2, library.implementation, **library.need_mpi4py(short_path))
    agents = job.agents()
    program = f"{ALLREDUCE}import os\nprint(os.environ.get('OMPI_MCA_coll_han_priority'))\n"
    launcher = job.launcher("mpirun", *python(program))

    assert launcher.wait() == 0, launcher.err()
    assert [agent.wait() for agent in agents] == [0, 0]
    logs = [job.rank_log(rank).split() for rank in range(4)]
    assert [words[1] for words in logs] == ["0", "1", "2", "3"]
    assert {words[-1] for words in logs} == {"0" if library.implementation == "OpenMPI" else "None"}


@pytest.mark.parametrize("library", [OPEN_MPI, MPICH, INTEL_MPI], ids=["openmpi", "mpich", "intel"])
def test_any_user_id(library: Library, local_gang: Callable[..., MpiGang], short_path: Path) -> None:
    """Launcher and workers run as a user that has no name, no home and no rights."""
    if reason := why_no_users():
        pytest.skip(reason)
    variables = library.need_mpi4py(short_path) | {"HOME": "/nowhere", **NOT_AS_ROOT}
    # Each pod has a user namespace of its own here, across which MPICH's UCX may not open memory in /proc.
    variables |= {"UCX_POSIX_USE_PROC_LINK": "n"}
    job = local_gang(2, 1, library.implementation, user=12345, **variables)
    job.agents()
    program = "import os\nfrom mpi4py import MPI\nprint(os.getuid(), os.geteuid(), MPI.COMM_WORLD.allreduce(1))"
    launcher = job.launcher("mpirun", *python(program))

    assert launcher.wait() == 0, launcher.err()
    assert [job.rank_log(rank) for rank in range(2)] == ["12345 12345 2\n"] * 2


@pytest.mark.parametrize("library", ALL)
def test_options_of_the_spec_reach_mpirun(
    library: Library, local_gang: Callable[..., MpiGang], short_path: Path
) -> None:
    """A variable for all ranks, with a blank in it; Open MPI also deals ranks out in turns."""
    by_turns = library.implementation == "OpenMPI"
    options = "--map-by node -x 'NOTE=two words'" if by_turns else "-genv NOTE 'two words'"
    variables = {"RINGTRAIN_MPI_OPTIONS": options, "RINGTRAIN_MPI_REQUIRE_INIT": "0", "NOTE": "the pod's"}
    job = local_gang(2, 2, library.implementation, **library.need(), **variables)
    job.agents()
    launcher = job.launcher("mpirun", "sh", "-c", "echo $RANK: $NOTE, $RINGTRAIN_POD_NAME", NOTE="two words")

    assert launcher.wait() == 0, launcher.err()
    for rank in range(4):
        worker = rank % 2 if by_turns else rank // 2
        assert job.rank_log(rank) == f"{rank}: two words, job-worker-{worker}\n"


@pytest.mark.parametrize("library", ALL)
def test_a_script_calls_mpirun_twice(library: Library, local_gang: Callable[..., MpiGang], short_path: Path) -> None:
    """A launcher's script finds an mpirun that knows the job; each rank's log has what both runs wrote."""
    variables = library.need_mpi4py(short_path)
    job = local_gang(2, 1, library.implementation, **variables)
    job.agents()
    program = short_path / "program.py"
    program.write_text("import sys\nfrom mpi4py import MPI\nprint(MPI.COMM_WORLD.allreduce(1), sys.argv[1])\n")
    script = f"mpirun {sys.executable} {program} once && mpirun -np 2 {sys.executable} {program} again"
    launcher = job.launcher("sh", "-c", script)

    assert launcher.wait() == 0, launcher.err()
    assert [job.rank_log(rank) for rank in range(2)] == ["2 once\n2 again\n"] * 2
