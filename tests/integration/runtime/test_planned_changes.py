"""Jobs that are scaled and drained at seeded moments; launcher, agents and ranks are real, and nothing is killed.

More seeds: make planned-changes SEEDS=300
"""

import re
import sys

import pytest
from frameworks.warm_python import shared_python
from support.planned_changes import history_of, judge, shrinks_with_local_parameters

_SEEDS = (0, 1, 2, 3, 5)  # each kind of training once


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_planned_change_loses_nothing(seed: int) -> None:
    """No step is made twice, each sample counts once, and the weights are those of an undisturbed training."""
    python = shared_python("torch") if history_of(seed).kind.startswith("torch") else sys.executable
    assert not (wrong := judge(seed, python=python)), wrong


@pytest.mark.parametrize("on_loss", ["Shrink", "Replace"])
def test_a_shrink_that_takes_local_parameters_with_it_is_no_success(on_loss: str) -> None:
    """Parameters that only leaving ranks have cannot be handed over: the job fails and its log names one."""
    problem, log = shrinks_with_local_parameters(on_loss)
    assert problem == "the job has ended with 1", problem
    assert re.search(r'StateLost: ranks \[.*\] of the former world are lost.*"two", which is local', log)
