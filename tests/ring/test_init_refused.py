"""A call of init() that is refused leaves nothing behind."""

from typing import Any

import numpy as np
import pytest
from support.ranks import run_ranks

import ringtrain as rt
from ringtrain.common import basics
from ringtrain.errors import ConfigurationError


def refused_then_right(initialized: bool) -> tuple[bool, Any]:
    if initialized:
        rt.init()
    once, again = rt.ProcessSet([0]), rt.ProcessSet([0])
    with pytest.raises(ConfigurationError, match="a set of these ranks exists already"):
        basics.init(process_sets=[once, rt.ProcessSet([1]), again])
    left = rt.is_initialized(), once.process_set_id
    sets = [once, rt.ProcessSet([1])]
    basics.init(process_sets=sets)
    mine = sets[rt.rank()]
    return left[0], [left[1], rt.allreduce(np.full(1, float(rt.rank())), process_set=mine).tolist()]


@pytest.mark.parametrize("initialized", [False, True], ids=["not-before", "before"])
def test_the_corrected_call_works(initialized: bool) -> None:
    """A refused init() ends the world that it met, and gives up the sets that it made."""
    found = run_ranks(refused_then_right, 2, initialized)
    assert found == [(initialized, [None, [0.0]]), (initialized, [None, [1.0]])]


def of_all_but_one() -> bool:
    class Comm:
        size = 1

    with pytest.raises(ConfigurationError, match="comm has 1 rank, but the world has 2"):
        basics.init(comm=Comm())
    return rt.is_initialized()


def test_a_comm_of_fewer_ranks_leaves_no_world() -> None:
    assert run_ranks(of_all_but_one, 2) == [False, False]
