"""Metrics that the page computes from the reports of ranks."""

from pathlib import Path

import pytest

from ringtrain_page.metrics import MOST_OWN, PageMetrics

DOCS = Path(__file__).parents[3] / "docs"


def test_which_part_of_its_time_a_rank_waited() -> None:
    """From its second report on; a rank that does not measure it has none; never more than its time."""
    metrics = PageMetrics()
    for time, waited in ((0.0, 5.0), (2.0, 1.0), (4.0, 9.0)):
        metrics.add(0, {"step": 1, "time": time, "inputWait": waited})
        metrics.add(1, {"step": 1, "time": time})
    assert [metrics.times.input_part(rank) for rank in range(3)] == [0.75, None, None]


def test_a_program_that_invents_metrics_all_day() -> None:
    """The first ones are drawn, the page says that there are more, and memory ends."""
    metrics = PageMetrics()
    for step in range(200):
        metrics.add(0, {"step": step, "time": float(step), "metrics": {f"metric-{step}": 1.0, "same": 1.0}})
    assert len(metrics.own) == MOST_OWN
    assert metrics.left_out
    assert [curve["name"] for curve in metrics.curves()] == ["same"]


def test_a_metric_that_is_never_finite_has_a_curve_without_points() -> None:
    """The page can say so, in the place of the curve."""
    metrics = PageMetrics()
    for step in range(1, 4):
        metrics.add(0, {"step": step, "time": float(step), "notFinite": {"loss": "NaN", "norm": "Infinity"}})
    steps = [[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]
    assert metrics.curves() == [{"name": name, "of": "step", "points": [], "bad": steps} for name in ("loss", "norm")]


def test_a_curve_ends_where_progress_does() -> None:
    """A step that some ranks have not reported has no point, as the run's progress does not show it."""
    metrics = PageMetrics()
    for step in range(1, 6):
        for rank in range(3):
            if step < 5 or rank == 0:
                metrics.add(rank, {"step": step, "time": float(step), "loss": 1.0 + rank, "metrics": {"f1": 0.5}})
    assert [curve["points"][-1] for curve in metrics.curves()] == [[4.0, 2.0], [4.0, 0.5]]


@pytest.mark.parametrize(
    ("steps", "every", "step_s"),
    [
        pytest.param(8, 1, 1.0, id="few-steps"),
        pytest.param(243, 1, 1.0, id="parts-of-no-whole-steps"),
        pytest.param(243, 1, 0.001, id="steps-shorter-than-a-bin"),
        pytest.param(1000, 100, 0.5, id="few-reports-of-many-steps"),
        pytest.param(5000, 7, 0.3, id="wide-bins"),
    ],
)
def test_a_steady_speed_is_drawn_as_one(steps: int, every: int, step_s: float) -> None:
    """From the first report on, wherever parts of the run begin and however seldom ranks report."""
    metrics = PageMetrics()
    for step in range(0, steps + 1, every):
        for rank in range(3):
            metrics.add(rank, {"step": step, "time": 1000.0 + step * step_s, "samples": 8 * every})
    (speed,) = metrics.curves()
    assert speed["points"][0][0] == 0.0
    assert [rate for _, rate in speed["points"]] == pytest.approx([24 / step_s] * len(speed["points"]), rel=0.03)


def test_a_rank_whose_clock_is_behind() -> None:
    """Earlier reports of other ranks keep their place on the curve when a rank reports an earlier time."""
    metrics = PageMetrics()
    for step in range(41):
        metrics.add(0, {"step": step, "time": 1000.0 + step, "samples": 8})
        metrics.add(1, {"step": step, "time": 990.0 + step, "samples": 8})
    (speed,) = metrics.curves()
    assert [round(rate) for _, rate in speed["points"]] == [8, 8, *[16] * 6, 8, 8]


@pytest.mark.parametrize("page", ["page.md", "logs.md"])
def test_a_page_says_how_many_metrics_are_drawn(page: str) -> None:
    """The text on curves states the maximum number of metrics that are drawn."""
    assert f"of the first {MOST_OWN} metrics that" in (DOCS / page).read_text()
