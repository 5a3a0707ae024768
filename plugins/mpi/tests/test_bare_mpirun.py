"""mpirun without a launcher of ours: `ringtrain.init()` finds its world on one host and on several."""

import os
import re
import sys
from pathlib import Path

import pytest
from mpi_libraries import MPICH, OPEN_MPI, OPEN_MPI_5, Library
from support.commands import completed
from support.deadlines import patient
from support.namespaces import network, why_not

ROOT = Path(__file__).parents[3]
DEADLINE_S = patient(180.0)
AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
SUM = """
import os
import numpy as np
import ringtrain as rt
rt.init()
total = rt.allreduce(np.full(1000, rt.rank() + 1.0), rt.Sum).max()
os.write(1, f"rank {rt.rank()} of {rt.size()} sum {total}\\n".encode())  # in one piece: all ranks share a pipe
"""


def run(words: list[str], **variables: str) -> str:
    """Return the output of the command `words`; it must succeed."""
    environment = {**os.environ, **AS_ROOT, **variables}
    done = completed(words, cwd=ROOT, env=environment, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("library", "transport"),
    [
        pytest.param(OPEN_MPI, "auto", id="openmpi"),
        pytest.param(OPEN_MPI, "mpi", id="openmpi-over-mpi"),
        pytest.param(OPEN_MPI_5, "auto", id="openmpi5"),
        pytest.param(MPICH, "auto", id="mpich"),
    ],
)
def test_digits_on_one_host(library: Library, transport: str, short_path: Path) -> None:
    """`mpirun -np 2 -H localhost:2 python examples/digits/train.py`: one model, trained by two ranks."""
    hosts = ["-hosts", "localhost:2"] if library is MPICH else ["-H", "localhost:2", "--bind-to", "none"]
    train = [sys.executable, "examples/digits/train.py", "--epochs", "4"]
    variables = library.need_mpi4py(short_path) | {"TMPDIR": str(short_path), "RINGTRAIN_TRANSPORT": transport}
    printed = run([library.mpirun, "-np", "2", *hosts, *train], **variables)
    (accuracy,) = re.findall(r"^test accuracy: (0\.\d+)$", printed, re.MULTILINE)
    assert float(accuracy) > 0.9, printed
    assert "global batch: 64 = 32 per rank x 2 ranks" in printed


def test_one_world_after_another(short_path: Path) -> None:
    """Ranks that call init() again, or run a second program, form a world of the current ranks."""
    OPEN_MPI.need()
    program = f"{sys.executable} -c '{SUM}rt.shutdown(){SUM}' && {sys.executable} -c '{SUM}'"
    command = [OPEN_MPI.mpirun, "-np", "2", "-H", "localhost:2", "--bind-to", "none", "sh", "-c", program]
    printed = run(command, TMPDIR=str(short_path), RINGTRAIN_TIMEOUT="20")
    assert sorted(printed.splitlines()) == sorted([f"rank {rank} of 2 sum 3.0" for rank in range(2)] * 3)


@pytest.mark.parametrize(
    ("library", "transport"),
    [
        pytest.param(OPEN_MPI, "auto", id="openmpi"),
        pytest.param(OPEN_MPI_5, "mpi", id="openmpi5-over-mpi"),
        pytest.param(MPICH, "auto", id="mpich"),
    ],
)
def test_two_hosts(library: Library, transport: str, short_path: Path) -> None:
    """Ranks on hosts without shared files find each other through MPI; then the ring, or MPI, transports the data."""
    if reason := why_not():
        pytest.skip(reason)
    variables = library.need_mpi4py(short_path) | {"TMPDIR": str(short_path), "RINGTRAIN_TRANSPORT": transport}
    with network(3) as net:
        remote = short_path / "remote-shell"
        lines = [
            f'{host.address}) exec {" ".join(host.enter[:4])} unshare --uts sh -c "hostname {host.name}; $*";;'
            for host in net.hosts
        ]
        remote.write_text(
            '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\ncase $host in\n'
            + "\n".join(lines)
            + "\nesac\n"
        )
        remote.chmod(0o755)
        first, *others = net.hosts
        hosts = ",".join(f"{host.address}:2" for host in others)
        if library is MPICH:
            options = ["-launcher-exec", str(remote), "-localhost", first.address, "-hosts", hosts]
        else:
            agent = ["--prtemca", "plm_ssh_agent"] if library is OPEN_MPI_5 else ["--mca", "plm_rsh_agent"]
            options = [*agent, str(remote), "-H", hosts, "--bind-to", "none"]
            for name in ("RINGTRAIN_TRANSPORT", "MPI4PY_MPIABI", "MPI4PY_LIBMPI"):
                options += ["-x", name] if name in variables else []
        command = [*first.enter, library.mpirun, *options, "-np", "4", sys.executable, "-u", "-c", SUM]
        printed = run(command, **variables)
    assert sorted(printed.splitlines()) == [f"rank {rank} of 4 sum 10.0" for rank in range(4)]
