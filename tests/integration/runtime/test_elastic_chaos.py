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

# Jobs that find losses by silence mostly wait: one of them, beside four that do not.
_BLOCKS = range(100)
_PATIENT, _SILENT = 4, 1


def _chosen() -> list[int]:
    """Blocks of seeds for this day; all processes that collect tests choose the same."""
    chance = random.Random(datetime.datetime.now(datetime.UTC).date().toordinal())
    patient = [block for block in _BLOCKS if shape_of(block).patient]
    silent = [block for block in _BLOCKS if not shape_of(block).patient]
    return chance.sample(silent, _SILENT) + chance.sample(patient, _PATIENT)


CHOSEN = _chosen()


def _seeds(block: int) -> list[int]:
    return list(range(block * BLOCK, (block + 1) * BLOCK))


@pytest.fixture(scope="module")
def verdicts() -> Iterator[dict[int, "Future[Verdict]"]]:
    """All blocks are played, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        yield {block: pool.submit(judge, _seeds(block)) for block in CHOSEN}


@pytest.mark.parametrize("block", CHOSEN, ids=lambda block: f"seeds-{_seeds(block)[0]}-to-{_seeds(block)[-1]}")
def test_whatever_is_struck_every_step_counts_once(block: int, verdicts: "dict[int, Future[Verdict]]") -> None:
    """No hang, weights and samples as if nothing had happened, at most a step lost, others' processes live on."""
    assert verdicts[block].result().wrong == {}
