"""Ranks are killed and stopped at seeded points of a step and of a re-formation; launcher and agent are real."""

import pytest
from support.elastic_chaos import failed

# One of each kind of fault; `make elastic-chaos SEEDS=1000` plays as many as one likes.
SEEDS = [15, 8, 26, 3]


@pytest.mark.parametrize("seed", SEEDS)
def test_seed(seed: int) -> None:
    """No hang, no step counted twice, processes that nothing happened to live on, weights as if nothing had."""
    assert failed(seed) == ""
