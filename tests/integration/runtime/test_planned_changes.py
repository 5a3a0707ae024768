"""Jobs that are scaled and drained at seeded moments; launcher, agents and ranks are real, and nothing is killed.

Thirty of three hundred seeds, others every day. To replay one: make planned-changes SEED=41
"""

import datetime
import random
import re

import pytest
from support.planned_changes import judge, shrinks_with_local_parameters

_SEEDS = sorted(random.Random(datetime.datetime.now(datetime.UTC).date().toordinal()).sample(range(300), 30))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", _SEEDS)
def test_a_planned_change_loses_nothing(seed: int) -> None:
    """No step is made twice, each sample counts once, and the weights are those of an undisturbed training."""
    assert not (wrong := judge(seed)), wrong


@pytest.mark.sampled
@pytest.mark.parametrize("on_loss", ["Shrink", "Replace"])
def test_a_shrink_that_takes_local_parameters_with_it_is_no_success(on_loss: str) -> None:
    """What leavers alone have can't be handed over: the job fails, and its log names the parameter."""
    problem, log = shrinks_with_local_parameters(on_loss)
    assert problem == "the job has ended with 1", problem
    assert re.search(r'StateLost: ranks \[.*\] of the former world are lost.*"two", which is local', log)
