"""What a page keeps of reports."""

from ringtrain.page.metrics import MOST_OWN, Metrics


def test_which_part_of_its_time_a_rank_waited() -> None:
    """From its second report on; a rank that does not measure it has none; never more than its time."""
    metrics = Metrics()
    for time, waited in ((0.0, 5.0), (2.0, 1.0), (4.0, 9.0)):
        metrics.add(0, {"step": 1, "time": time, "inputWait": waited})
        metrics.add(1, {"step": 1, "time": time})
    assert [metrics.times.input_part(rank) for rank in range(3)] == [0.75, None, None]


def test_a_program_that_invents_metrics_all_day() -> None:
    """The first ones are drawn, the page says that there are more, and memory ends."""
    metrics = Metrics()
    for step in range(200):
        metrics.add(0, {"step": step, "time": float(step), "metrics": {f"metric-{step}": 1.0, "same": 1.0}})
    assert len(metrics.own) == MOST_OWN
    assert metrics.left_out
    assert [curve["name"] for curve in metrics.curves()] == ["same"]
