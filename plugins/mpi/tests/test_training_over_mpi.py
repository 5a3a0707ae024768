"""Training with RINGTRAIN_TRANSPORT=mpi, when a rank is lost: noticed as over the network, and named."""

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from mpi_jobs import MpiGang
from mpi_libraries import MPICH, OPEN_MPI, OPEN_MPI_5, Library, python
from support.gang import until_ended

TRAIN = """
import os
import numpy as np
import ringtrain as rt
rt.init()
print("rank", rt.rank(), "is process", os.getpid(), "over", os.environ["RINGTRAIN_TRANSPORT"])
step = 0
while rt.rank() != 3 or step < 10 or not os.environ.get("HANGS"):
    assert rt.allreduce(np.full(1000, step), rt.Sum)[0] == step * rt.size()
    step += 1
    if step == 10: print("ten steps")
import time
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("library", "fault"),
    [
        pytest.param(OPEN_MPI, None, id="openmpi-hangs"),
        pytest.param(OPEN_MPI_5, signal.SIGKILL, id="openmpi5-killed"),
        pytest.param(MPICH, signal.SIGSTOP, id="mpich-stopped"),
        pytest.param(MPICH, signal.SIGKILL, id="mpich-killed"),
    ],
)
def test_a_lost_rank_is_named(
    library: Library, fault: signal.Signals | None, local_gang: Callable[..., MpiGang], short_path: Path
) -> None:
    """A rank that hangs makes others raise PeerLost, which names it; one that dies is named by its agent.

    The signal by which mpirun then ends the rank that hangs is no cause: rules for kills must not match it.
    After a death more can't be promised: mpirun kills the others in answer, before or after they raise PeerLost.
    """
    variables = {} if fault else {"HANGS": "1", "RINGTRAIN_STALL_TIMEOUT": "10"}
    variables |= library.need_mpi4py(short_path) | {"OMPI_MCA_mpi_yield_when_idle": "1"}
    job = local_gang(2, 2, library.implementation, RINGTRAIN_TIMEOUT="10", RINGTRAIN_TRANSPORT="mpi", **variables)
    job.agents()
    launcher = job.launcher("mpirun", *python(TRAIN))
    for rank in range(4):
        job.wait_for_line(rank, "ten steps")
    # Not the first line of a log: libraries may have warned of something before.
    pids = [int(job.rank_log(rank).split(f"rank {rank} is process ")[1].split()[0]) for rank in range(4)]
    ranks = [psutil.Process(pid) for pid in pids]
    if fault:
        ranks[3].send_signal(fault)
    code = launcher.wait()
    found = launcher.message()["failure"]
    assert found["reason"] == "RankFailed", found
    assert (found["rank"], found["pod"]) == (3, "job-worker-1"), found
    if fault is signal.SIGKILL:
        assert code == 128 + signal.SIGKILL
    else:
        assert (code, found.get("signal")) == (1, None), found
        lost = [line for rank in range(3) for line in job.rank_log(rank).splitlines() if "PeerLost:" in line]
        assert lost
        assert all("rank 3" in line for line in lost), lost
    until_ended(ranks)
