"""Elastic jobs whose processes are killed and stopped at seeded points; launcher, agents and ranks are real.

Fifty of a thousand seeds, others every day. To replay one: make elastic-chaos SEED=417
"""

import datetime
import random
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from support.elastic_chaos import Verdict, judge
from support.elastic_faults import BLOCK, shape_of

_BLOCKS = range(100)


def _chosen() -> list[int]:
    """Blocks of seeds for this day, so that all processes which collect tests choose the same.

    Jobs that find losses by silence mostly wait: one of them, beside two that do not.
    """
    chance = random.Random(datetime.datetime.now(datetime.UTC).date().toordinal())
    patient = [block for block in _BLOCKS if shape_of(block).patient]
    silent = [block for block in _BLOCKS if not shape_of(block).patient]
    return chance.sample(silent, 1) + chance.sample(patient, 2)


PLAYS = {
    **{
        f"seeds-{block * BLOCK}-to-{block * BLOCK + BLOCK - 1}": list(range(block * BLOCK, (block + 1) * BLOCK))
        for block in _chosen()
    },
    "the-only-rank-of-its-world-is-stopped": [38],
}


@pytest.fixture(scope="module")
def verdicts() -> Iterator[dict[str, "Future[Verdict]"]]:
    """All are played, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(judge, seeds) for name, seeds in PLAYS.items()}


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("name", PLAYS)
def test_whatever_is_struck_every_step_counts_once(name: str, verdicts: dict[str, "Future[Verdict]"]) -> None:
    """No hang, weights and samples as if nothing had happened, at most a step lost, others' processes live on."""
    wrong = verdicts[name].result().wrong
    assert not wrong, "\n".join(f"seed {seed}: {text}" for seed, text in wrong.items())
