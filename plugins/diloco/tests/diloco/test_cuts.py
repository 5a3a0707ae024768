"""Elastic jobs with DiLoCo over slow links that fail, and whose processes are killed and stopped.

More seeds: make elastic-chaos KIND=diloco SEEDS=100
"""

import pytest

from diloco.cuts import judge, why_not

_SEEDS = (3, 7)  # four pods of one rank, and two of two ranks


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "there are namespaces")
@pytest.mark.parametrize("seed", _SEEDS)
def test_a_pod_that_is_cut_off_enters_again_at_a_synchronization(seed: int) -> None:
    """The training goes on and ends, outer weights are alike after each synchronization, each inner step counts
    once, and all or none of a rank's samples between two synchronizations: none only if the others went on without
    that rank."""
    assert not (wrong := judge(seed)), wrong
