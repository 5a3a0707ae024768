"""In which order buckets are reduced."""

from collections.abc import Callable

import numpy as np
import pytest
from support.memory_group import MemoryGroup, run_threads

from ringtrain.optim.layout import Bucket, ParamSpec, plan_layout
from ringtrain.optim.order import BucketOrder, front_first

# Of six buckets one is ready each second.
EACH_SECOND = np.arange(6.0)


@pytest.mark.parametrize(
    ("ready", "took_s", "expected"),
    [
        (EACH_SECOND, 0.5, [0, 1, 2, 3, 4, 5]),  # none ever waits for another
        (EACH_SECOND, 1.5, [0, 1, 2, 4, 5, 3]),
        (EACH_SECOND, 4.0, [0, 1, 5, 4, 3, 2]),
        (EACH_SECOND * 0, 1.0, [0, 1, 5, 4, 3, 2]),  # all gradients at once
        (EACH_SECOND[::-1].copy(), 0.1, [0, 1, 5, 4, 3, 2]),
    ],
)
def test_of_those_that_wait_the_last_goes_first(ready: np.ndarray, took_s: float, expected: list[int]) -> None:
    """The first two stay where they are."""
    assert front_first(ready, np.full(6, took_s), 2) == expected


def _order_after(overlaps: Callable[[int], bool], ready_s: Callable[[int, int], float], updates: int) -> list[int]:
    """The order after some updates of two ranks, whose buckets take a second each."""
    specs = [ParamSpec(f"p{index}", (1000,), np.dtype(np.float32)) for index in range(6)]
    layout = plan_layout(specs, 2, 4000)

    def run(group: MemoryGroup) -> list[int]:
        now = 0.0
        order = BucketOrder(layout, group, lambda: now)
        for number in range(1, updates + 1):
            order.overlaps = overlaps(group.rank)
            order.begin()
            now = began = 100.0 * number * (1 + group.rank)  # clocks differ
            for place, bucket in enumerate(order.buckets):
                complete = began + ready_s(group.rank, bucket.index) if place else began
                now = max(now, complete) + 1.0
                order.reduced(bucket, complete)
            order.end(number)
        return _indices(order.buckets)

    first, second = run_threads(run, 2)
    assert first == second
    return first


def _indices(buckets: tuple[Bucket, ...]) -> list[int]:
    return [bucket.index for bucket in buckets]


@pytest.mark.parametrize("updates", [4, 16, 64, 100])
def test_ranks_change_it_together(updates: int) -> None:
    """After a few updates, and go on with what they have measured in the new one."""
    assert _order_after(lambda rank: True, lambda rank, index: 0.0, updates) == [0, 1, 5, 4, 3, 2]


def test_it_stays_until_then() -> None:
    assert _order_after(lambda rank: True, lambda rank, index: 0.0, 3) == [0, 1, 2, 3, 4, 5]


def test_it_stays_where_a_rank_waits_for_all_weights() -> None:
    assert _order_after(lambda rank: rank == 0, lambda rank, index: 0.0, 16) == [0, 1, 2, 3, 4, 5]


def test_the_rank_that_is_last_to_have_a_bucket_counts() -> None:
    """Rank 1 has the last bucket after the others have gone."""

    def ready_s(rank: int, index: int) -> float:
        return 9.0 if (rank, index) == (1, 5) else 0.0

    assert _order_after(lambda rank: True, ready_s, 16) == [0, 1, 4, 3, 2, 5]
