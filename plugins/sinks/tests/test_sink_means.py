"""One point a step of all ranks' reports."""

from ringtrain_sinks.means import SinkStepMeans


def report(step: int, time: float, **more: object) -> dict[str, object]:
    return {"step": step, "time": time, **more}


def test_a_step_is_the_mean_of_its_ranks() -> None:
    """The mean exists when all ranks have reported; speeds are added; characters that a service refuses are
    replaced."""
    means = SinkStepMeans(2)
    assert list(means.add(0, report(1, 10.0, loss=1.0, samples=8))) == []
    (first,) = means.add(1, report(1, 10.5, loss=3.0, samples=8))
    assert (first.step, first.time, first.values) == (1, 10.0, {"loss": 2.0})
    assert list(means.add(0, report(2, 12.0, loss=1.0, samples=8, metrics={"top(1)": 0.5}))) == []
    (second,) = means.add(1, report(2, 12.5, loss=None, samples=8, notFinite={"loss": "nan"}))
    assert second.values["samples_per_second"] == 8.0
    assert second.values["top_1_"] == 0.5
    assert second.values["loss"] != second.values["loss"]


def test_a_step_waits_for_a_while() -> None:
    """A lost rank does not delay steps for ever, and a repeated step counts once."""
    means = SinkStepMeans(2)
    assert list(means.add(0, report(1, 10.0, loss=1.0))) == []
    assert list(means.add(0, report(2, 40.0, loss=2.0))) == []
    (late,) = means.add(0, report(3, 40.5, loss=3.0))
    assert (late.step, late.values["loss"]) == (1, 1.0)
    assert list(means.add(1, report(1, 41.0, loss=9.0))) == []
    assert [(point.step, point.values["loss"]) for point in means.rest()] == [(2, 2.0), (3, 3.0)]
    assert list(means.rest()) == []


def test_what_is_no_step_is_left_out() -> None:
    """Reports of a start position and reports without a value produce no point."""
    means = SinkStepMeans(1)
    assert list(means.add(0, report(0, 1.0, startedFrom="a checkpoint"))) == []
    assert list(means.add(0, report(1, 2.0))) == []
    assert list(means.rest()) == []
