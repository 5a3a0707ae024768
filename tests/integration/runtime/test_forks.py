"""Ranks that fork, as data loaders do, while collectives are under way."""

from collections.abc import Callable

from support.gang import GangProcesses

SCRIPT = """
import multiprocessing, os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # since Python 3.12 of any fork beside threads
import numpy as np
import ringtrain as rt

rt.init()
fork = multiprocessing.get_context("fork")
ones = np.ones(200_000, np.float32)
codes = []
for _ in range(20):
    handle = rt.allreduce_async(ones, rt.Sum)
    loader = fork.Process(target=sum, args=([1, 2],))
    loader.start()
    loader.join(20)
    codes.append(loader.exitcode)
    assert (handle.synchronize() == rt.size()).all()
child = os.fork()
if child == 0:
    print("world in the child:", rt.is_initialized())
    sys.exit(7)
codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
rt.barrier()
print("codes", codes)
rt.shutdown()
"""


def test_ranks_may_fork(gang: Callable[..., GangProcesses]) -> None:
    """Children of a rank end as they mean to, are in no world, and leave the rank's alone, also when they exit."""
    job = gang(1, 2, RINGTRAIN_TRANSPORT="grpc", RINGTRAIN_TIMEOUT="20")
    launcher, agent = job.launcher(), job.agent(0, *job.python(SCRIPT))
    assert [launcher.wait(), agent.wait()] == [0, 0]
    for rank in range(2):
        expected = ["world in the child: False", f"codes {[0] * 20 + [7]}"]
        assert job.rank_log(rank).decode().splitlines() == expected
