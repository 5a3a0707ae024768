"""Elastic jobs with DiLoCo whose processes are killed at seeded points.

More seeds: PYTHONPATH=../../../tests python -m diloco.training 100
"""

from collections.abc import Iterator

import pytest
from frameworks.warm_python import warm_python

from diloco.training import judge

_SEEDS = range(4)


@pytest.fixture(scope="module")
def python() -> Iterator[str]:
    """A `python` that has imported Ringtrain, for ranks whose training takes less than that."""
    with warm_python("ringtrain.elastic") as made:
        yield made


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_lost_rank_takes_its_own_inner_steps_with_it_and_nobody_elses(seed: int, python: str) -> None:
    """Outer weights are alike after each synchronization, each inner step counts once, and all or none of a rank's
    samples between two synchronizations count: none only if that rank was lost."""
    assert not (wrong := judge(seed, python)), wrong
