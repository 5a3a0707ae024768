"""mpi4py's own tests of its collectives, on two hosts whose daemons `ringtrain rsh` has started."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mpi_jobs import MpiGang
from mpi_libraries import MPICH, OPEN_MPI, OPEN_MPI_5, Library

RUNNER = Path(sys.prefix) / "mpi4py-source/test/main.py"


@pytest.mark.parametrize(
    ("library", "modules"),
    [
        pytest.param(OPEN_MPI, ["test_cco_buf", "test_cco_obj", "test_cco_vec"], id="openmpi"),
        pytest.param(OPEN_MPI_5, ["test_cco_buf", "test_cco_obj", "test_cco_vec"], id="openmpi5"),
        pytest.param(MPICH, ["test_cco_buf", "test_cco_obj"], id="mpich"),
    ],
)
def test_collectives(library: Library, modules: list[str], gang: Callable[..., MpiGang], short_path: Path) -> None:
    """All pass, on both ranks. (Blocking forms, within and not between groups: what a training job uses.)"""
    if not RUNNER.is_file():
        pytest.skip(f"mpi4py's tests are not in {RUNNER.parent}: `make test` downloads them")
    # Ranks that poll would keep a machine with fewer cores than ranks from making progress.
    variables = {**library.need_mpi4py(short_path), "OMPI_MCA_mpi_yield_when_idle": "1"}
    job = gang(2, 1, library.implementation, **variables)
    job.agents()
    included = [word for module in modules for word in ("-i", module)]
    launcher = job.launcher("mpirun", sys.executable, str(RUNNER), *included, "-e", "inter")

    assert launcher.wait(300) == 0, launcher.err() + job.rank_log(0)[-3000:]
    for rank in range(2):
        assert job.rank_log(rank).rstrip().endswith("OK")
        assert int(re.findall(r"Ran (\d+) tests", job.rank_log(rank))[0]) > 50
