"""Commands that name mpi-operator's hostfile, or its workers by ssh, work as they stand."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from mpi_jobs import MpiGang
from mpi_libraries import INTEL_MPI, MPICH, OPEN_MPI, Library, python
from support.source_rules import HOSTFILE

LocalGang = Callable[..., MpiGang]
HELLO = "from mpi4py import MPI; print('rank', MPI.COMM_WORLD.rank, 'of', MPI.COMM_WORLD.size)"


@pytest.mark.parametrize("library", [OPEN_MPI, MPICH, INTEL_MPI], ids=["openmpi", "mpich", "intel"])
def test_a_script_with_the_hostfile(library: Library, local_gang: LocalGang, short_path: Path) -> None:
    """The file is at the declared path, in the implementation's format; ssh reaches its hosts, and the script handles a
    failed command; mpirun accepts the file."""
    variables = library.need_mpi4py(short_path)
    file, copy, seen = (short_path / name for name in ("hostfile", "copy", "seen"))
    job = local_gang(2, 2, library.implementation, RINGTRAIN_MPI_HOSTFILE=str(file), **variables)
    hosts = f"$(sed 's/[: ].*//' {file})"
    loop = f"for host in {hosts}; do ssh -p 22 $host 'echo $RINGTRAIN_POD_NAME >> {seen}; false' || true; done"
    option = "-hostfile" if library is OPEN_MPI else "-f"
    words = shlex.join(python(HELLO))
    job.agents()
    launcher = job.launcher("bash", "-c", f"cp {file} {copy}; {loop}; mpirun -np 4 {option} {file} {words}")
    assert job.finish(launcher) == 0, launcher.message()
    lines = copy.read_text().splitlines()
    assert len(lines) == 2
    assert all(re.fullmatch(HOSTFILE[library.implementation].format(slots=2), line) for line in lines)
    assert seen.read_text().split() == ["job-worker-0", "job-worker-1"]
    assert "rank 3 of 4" in job.rank_log(3)


def test_a_script_reaches_other_hosts_by_its_own_ssh(local_gang: LocalGang, short_path: Path) -> None:
    """The script connects like `git clone`; it handles a failure itself, and no worker is lost."""
    programs, seen = short_path / "bin", short_path / "seen"
    programs.mkdir()
    (programs / "ssh").write_text(f'#!/bin/sh\necho "$@" > {seen}\nexit 1\n')
    (programs / "ssh").chmod(0o755)
    job = local_gang(2, 1, "OpenMPI", **OPEN_MPI.need_mpi4py(short_path))
    words = shlex.join(python(HELLO))
    job.agents()
    launcher = job.launcher(
        "bash",
        "-c",
        f"PATH=$(dirname $(command -v ssh)):{programs}:$PATH; ssh git@example.org info || mpirun -np 2 {words}",
    )
    assert job.finish(launcher) == 0, launcher.message()
    assert seen.read_text() == "git@example.org info\n"
    assert "rank 1 of 2" in job.rank_log(1)
