"""Elastic jobs with DiLoCo whose processes are killed at seeded points.

More seeds: PYTHONPATH=../../../tests python -m diloco.training 100
"""

import pytest
from frameworks.warm_python import shared_python

from diloco.training import judge

_SEEDS = range(4)


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_lost_rank_takes_its_own_inner_steps_with_it_and_nobody_elses(seed: int) -> None:
    """Outer weights are alike after each synchronization, each inner step counts once, and all or none of a rank's
    samples between two synchronizations count: none only if that rank was lost. Their training takes less time than
    the import of Ringtrain would."""
    assert not (wrong := judge(seed, shared_python("ringtrain.elastic"))), wrong
