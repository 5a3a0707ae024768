"""Ranks whose weights or rates differ from those of the others are named, with the update."""

from typing import Any

import numpy as np
import pytest
from support.memory_group import MemoryGroup, run_threads

from ringtrain.errors import MismatchError, StateCorrupt
from ringtrain.optim import SGD, HostOptimizer
from ringtrain.optim.memory_check import EVERY
from ringtrain.optim.replica_check import compare_weights, odd_ranks


@pytest.mark.parametrize(
    ("digests", "odd"),
    [
        ([7, 7, 7], ()),
        ([7, 8, 7], (1,)),
        ([8, 7, 7, 9], (0, 1, 2, 3)),
        ([7, 8], (0, 1)),
        ([7, 7, 8, 7, 9], (2, 4)),
    ],
    ids=str,
)
def test_the_odd_ranks_are_those_that_are_not_the_majority(digests: list[int], odd: tuple[int, ...]) -> None:
    """All of them if there is no majority."""
    assert odd_ranks(digests) == odd


def test_only_updates_that_all_ranks_report_are_compared() -> None:
    """The first one that differs is named; -1 stands for the time when weights were last set."""
    compare_weights([{1: 5, 2: 6}, {1: 5}, {1: 5, 2: 7}])
    with pytest.raises(StateCorrupt, match=r"after update 1 the weights on ranks \[2\]"):
        compare_weights([{1: 5, 3: 1}, {1: 5, 3: 1}, {1: 6, 3: 2}])
    with pytest.raises(StateCorrupt, match="when they were last set or loaded ranks"):
        compare_weights([{-1: 5}, {-1: 6}])


@pytest.mark.parametrize(
    ("changed_after", "found_before"), [(1, 3), (2, EVERY + 1), (EVERY - 1, EVERY + 1), (EVERY, 2 * EVERY + 1)]
)
def test_weights_and_rates_are_compared_after_some_updates(changed_after: int, found_before: int) -> None:
    """After the first two, and then after each 20: until then a rank that differs is not found."""

    def train(group: MemoryGroup, changes: Any) -> None:
        opt = HostOptimizer({"w": np.zeros(90, np.float32)}, SGD(0.5), group=group)
        for update in range(1, found_before + 1):
            opt.submit("w", np.ones(90, np.float32))
            try:
                opt.step()
            except (MismatchError, StateCorrupt):
                assert update == found_before
                raise
            if group.rank == 1 and update == changed_after:
                changes(opt)

    def changes_weight(opt: HostOptimizer) -> None:
        opt.weights["w"][40] += 1

    def changes_rate(opt: HostOptimizer) -> None:
        opt.set_rules([SGD(0.25)])

    with pytest.raises(StateCorrupt) as corrupt:
        run_threads(train, 3, changes_weight)
    assert corrupt.value.ranks == (1,)
    with pytest.raises(
        MismatchError, match=rf"update {changed_after + 1} was made with .* \[0.5\] on rank 0 and \[0.25\]"
    ):
        run_threads(train, 3, changes_rate)
