"""A child process of a rank is no rank."""

import os
import subprocess
import sys

import numpy as np
import pytest
from support.commands import completed
from support.deadlines import patient
from support.ranks import run_ranks

import ringtrain as rt
from ringtrain.optim import SGD, HostOptimizer

CHILD = "import ringtrain as rt; rt.init()"


def what_children_say() -> tuple[str, int]:
    """The last line of a child that joins while its parent is in the world, and the end of one that does later."""
    rt.init()
    refused = completed([sys.executable, "-c", CHILD], timeout=patient(60))
    rt.barrier()
    rt.shutdown()
    later = subprocess.run([sys.executable, "-c", CHILD + "; rt.barrier()"], timeout=patient(60))
    return refused.stderr.splitlines()[-1], later.returncode


def test_a_child_of_a_rank_is_told_that_it_has_its_environment() -> None:
    """At once, with the rank and its process. After the rank's shutdown() a child may take its place."""
    for rank, (line, later) in enumerate(run_ranks(what_children_say, 2)):
        assert f"this process has the environment of rank {rank} (process " in line
        assert "call init() only in the rank" in line
        assert later == 0


def what_a_forked_child_gets() -> tuple[str, list[float]]:
    """Return the error of a child that requests a collective of the rank's optimizer, and the rank's next weights."""
    rt.init()
    optimizer = HostOptimizer({"w": np.ones(2)}, SGD(1.0))
    told, tells = os.pipe()
    if not (child := os.fork()):
        try:
            said = f"got {optimizer.state_dict()}"
        except Exception as error:
            said = repr(error)
        os.write(tells, said.encode())
        os._exit(0)
    os.waitpid(child, 0)
    optimizer.submit("w", np.full(2, 0.5))
    optimizer.step()
    rt.shutdown()
    return os.read(told, 1000).decode(), optimizer.weights["w"].tolist()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_a_forked_child_can_do_nothing_in_the_world_of_its_parent(transport: str) -> None:
    """An optimizer that it inherits, which may be asked for a checkpoint there, does not speak for the rank."""
    for said, weights in run_ranks(what_a_forked_child_gets, 2, env={"RINGTRAIN_TRANSPORT": transport}):
        assert "NotInitializedError('this process was forked from a rank, and is none" in said
        assert weights == [0.5, 0.5]


def what_a_child_writes_stays_there() -> tuple[list[float], list[float]]:
    """Return the weights that a forked child finds and writes, and the weights after the rank's next step."""
    rt.init()
    optimizer = HostOptimizer({"w": np.ones(5000)}, SGD(1.0), elastic=True)
    weights = optimizer.weights["w"]
    told, tells = os.pipe()
    if not (child := os.fork()):
        found = weights[:1].tolist()
        weights[:] = -999.0
        os.write(tells, np.array([*found, *weights[:1]]).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    optimizer.submit("w", np.full(5000, 0.5))
    optimizer.step()
    rt.shutdown()
    return np.frombuffer(os.read(told, 1000)).tolist(), np.unique(weights).tolist()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_what_a_forked_child_writes_to_its_weights_is_its_own(transport: str) -> None:
    """It reads and writes its copy; the training of all ranks has the weights of a run without it."""
    for of_child, weights in run_ranks(what_a_child_writes_stays_there, 2, env={"RINGTRAIN_TRANSPORT": transport}):
        assert of_child == [1.0, -999.0]
        assert weights == [0.5]
