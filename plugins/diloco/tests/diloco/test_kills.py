"""Elastic jobs with DiLoCo whose processes are killed at seeded points.

Two of a hundred seeds, others every day. To replay one: PYTHONPATH=../../../tests python -m diloco.training --seed 41
"""

import datetime
import random

import pytest

from diloco.training import judge

_SEEDS = sorted(random.Random(datetime.datetime.now(datetime.UTC).date().toordinal()).sample(range(100), 10))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", _SEEDS)
def test_a_lost_rank_takes_its_own_inner_steps_with_it_and_nobody_elses(seed: int) -> None:
    """Outer weights are alike after each synchronization, each inner step counts once, and all or none of a rank's
    samples between two synchronizations count: none only if that rank was lost."""
    assert not (wrong := judge(seed)), wrong
