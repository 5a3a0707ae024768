"""Elastic jobs with DiLoCo over slow links that fail, and whose processes are killed and stopped.

Two of a hundred seeds, others every day. To replay one: make elastic-chaos KIND=diloco SEED=41
"""

import datetime
import random

import pytest

from diloco.cuts import judge, why_not

_SEEDS = sorted(random.Random(datetime.datetime.now(datetime.UTC).date().toordinal()).sample(range(100), 10))


@pytest.mark.sampled(2)
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "there are namespaces")
@pytest.mark.parametrize("seed", _SEEDS)
def test_a_pod_that_is_cut_off_enters_again_at_a_synchronization(seed: int) -> None:
    """The training goes on and ends, outer weights are alike after each synchronization, each inner step counts
    once, and all or none of a rank's samples between two synchronizations: none only if the others went on without
    that rank."""
    assert not (wrong := judge(seed)), wrong
