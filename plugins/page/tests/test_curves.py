"""Curves of bounded size."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtrain_page.curves import MOST_BINS, PageCurve


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(-1000, 1000)), min_size=1, max_size=3000))
def test_bins_are_few_and_lose_no_value(points: list[tuple[int, int]]) -> None:
    """Whatever comes, in any order: the bins are at most so many, and their sum is that of the values."""
    curve = PageCurve()
    for position, value in points:
        curve.add(position, value)
    last = max(position for position, _ in points)
    positions = [position for position, _ in curve.means()]
    assert len(positions) <= MOST_BINS
    assert positions == sorted(set(positions))
    assert min(positions) <= min(position for position, _ in points) < min(positions) + curve.width
    for count in (1, 7):
        rates = [rate for _, rate in curve.rates(count, last + 1)]
        assert sum(rates) * (last + 1) / count == pytest.approx(sum(value for _, value in points), abs=0.1)


def test_a_few_points_are_themselves() -> None:
    """Up to the limit each whole position has a bin of its own, with the mean of what was added there."""
    curve = PageCurve()
    for position, value in ((3, 1.0), (1, 4.0), (3, 3.0)):
        curve.add(position, value)
    assert curve.means() == [[1.0, 4.0], [3.0, 2.0]]


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, 1.7e308, -1.7e308])
def test_what_is_no_number_is_left_out(value: float | None) -> None:
    """It has no place on an axis."""
    curve = PageCurve()
    curve.add(1, value)
    assert (curve.means(), curve.rates(3, 1.0)) == ([], [])


def test_a_pause_shows_as_a_rate_of_nothing() -> None:
    """Parts in which nothing was added have the rate 0, and are not left out."""
    curve = PageCurve()
    for second in (0, 1, 2, 3, 16, 17, 18, 19):
        curve.add(second, 10)
    assert curve.rates(5, 20.0) == [[0.0, 10.0], [4.0, 0.0], [8.0, 0.0], [12.0, 0.0], [16.0, 10.0]]
