"""A child process of a rank is no rank."""

import subprocess
import sys

from support.ranks import run_ranks

import ringtrain as rt

CHILD = "import ringtrain as rt; rt.init()"


def what_children_say() -> tuple[str, int]:
    """The last line of a child that joins while its parent is in the world, and the end of one that does later."""
    rt.init()
    refused = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=60)
    rt.barrier()
    rt.shutdown()
    later = subprocess.run([sys.executable, "-c", CHILD + "; rt.barrier()"], timeout=60)
    return refused.stderr.splitlines()[-1], later.returncode


def test_a_child_of_a_rank_is_told_that_it_has_its_environment() -> None:
    """At once, with the rank and its process. After the rank's shutdown() a child may take its place."""
    for rank, (line, later) in enumerate(run_ranks(what_children_say, 2)):
        assert f"this process has rank {rank}'s environment and is a child of it (process " in line
        assert "a rank is one process: call init() there alone" in line
        assert later == 0
