"""A login shell's script, or one that sets PATH itself, starts the job's mpirun."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from mpi_jobs import MpiGang
from mpi_libraries import INTEL_MPI, OPEN_MPI, Library, python

LocalGang = Callable[..., MpiGang]
HELLO = shlex.join(python("from mpi4py import MPI; print('rank', MPI.COMM_WORLD.rank, 'of', MPI.COMM_WORLD.size)"))
FRESH = "PATH=/usr/local/bin:/usr/bin:/bin"  # what /etc/profile says where it is not Debian's


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["bash", "-lc", "mpirun {options} {program}"], id="text"),
        pytest.param(["bash", "--login", "-eo", "pipefail", "-c", "exec mpirun {options} {program}"], id="exec"),
        pytest.param(["sh", "-lc", "mpirun {options} {program}"], id="sh"),
        pytest.param(["bash", "-l", "{script}"], id="script"),
        pytest.param(["bash", "-c", FRESH + "; mpirun {options} {program}"], id="set-by-the-script"),
    ],
)
def test_ranks_are_the_jobs(words: list[str], local_gang: LocalGang, short_path: Path) -> None:
    """Every rank is in the job's world and has its own log, as if the shell were none."""
    job = local_gang(2, 1, "OpenMPI", **OPEN_MPI.need_mpi4py(short_path))
    options = "--bind-to none"
    (short_path / ".profile").write_text(FRESH)
    script = short_path / "script.sh"
    script.write_text(f"mpirun {options} {HELLO}\n")
    job.agents()
    launcher = job.launcher(*(word.format(options=options, program=HELLO, script=script) for word in words))
    assert job.finish(launcher) == 0, launcher.message()
    assert [job.rank_log(rank) for rank in range(2)] == ["rank 0 of 2\n", "rank 1 of 2\n"]


@pytest.mark.parametrize("given", ["by-a-profile", "by-a-path", "by-a-variable"])
def test_an_mpirun_that_is_not_in_the_pods_path(given: str, local_gang: LocalGang, short_path: Path) -> None:
    """mpirun is found where a login shell finds it, by its path, or by Intel's variable. Intel's script of the same
    name would start another mpiexec.hydra. Ranks find its libraries."""
    library: Library = INTEL_MPI
    variables = {name: value for name, value in library.need_mpi4py(short_path).items() if name != "PATH"}
    bin_folder = f"{library.prefix}/bin"
    command = {
        "by-a-profile": ["bash", "-lc", f"mpirun {HELLO}"],
        "by-a-path": [f"{bin_folder}/mpirun", *shlex.split(HELLO)],
        "by-a-variable": ["mpirun", *shlex.split(HELLO)],
    }[given]
    settings = {"I_MPI_ROOT": str(library.prefix)} if given == "by-a-variable" else {}
    (short_path / ".profile").write_text(f"PATH={bin_folder}:$PATH" if given == "by-a-profile" else "")
    job = local_gang(2, 1, "Intel", **variables)
    job.agents()
    launcher = job.launcher(*command, **settings)
    assert job.finish(launcher) == 0, launcher.message()
    assert f"{bin_folder}/mpiexec.hydra (Intel" in launcher.err()
    assert job.rank_log(1) == "rank 1 of 2\n"
