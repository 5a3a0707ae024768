"""Jobs that are scaled and drained at seeded moments; launcher, agents and ranks are real, and nothing is killed.

Thirty of three hundred seeds, others every day. To replay one: make planned-changes SEED=41
"""

import datetime
import random

import pytest
from support.planned_changes import judge

_SEEDS = sorted(random.Random(datetime.datetime.now(datetime.UTC).date().toordinal()).sample(range(300), 30))


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", _SEEDS)
def test_a_planned_change_loses_nothing(seed: int) -> None:
    """No step is made twice, each sample counts once, and the weights are those of an undisturbed training."""
    assert not (wrong := judge(seed)), wrong
