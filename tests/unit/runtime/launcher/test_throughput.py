"""Throughput as the TensorFlow benchmarks define it, checked by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest

from ringtrain_job.launcher.throughput import (
    GangThroughput,
    Progress,
    Speed,
    throughput_step_line,
    throughput_total_line,
)


def report(step: int, time: float, **more: Any) -> dict[str, Any]:
    return {"step": step, "time": time, "samples": 10, "unit": "images", **more}


def test_mean_uncertainty_and_jitter() -> None:
    """Steps of 1, 2 and 1 s with 20 samples each: speeds 20, 10 and 20."""
    throughput = GangThroughput(2)
    closed = []
    for step, time in ((1, 100.0), (2, 101.0), (3, 103.0), (4, 104.0)):
        closed += throughput.add(0, report(step, time - 0.5))
        closed += throughput.add(1, report(step, time))
    assert closed == [1, 2, 3, 4]
    speed = throughput.speed()
    assert speed.mean == throughput.total() == 60 / 4
    mean = 50 / 3
    deviation = math.sqrt(((20 - mean) ** 2 * 2 + (10 - mean) ** 2) / 3)
    assert speed.uncertainty == pytest.approx(deviation / math.sqrt(3))
    assert speed.jitter == 0  # median of |20-20|, |10-20|, |20-20|


def test_jitter_is_scaled_to_a_standard_deviation() -> None:
    """Speeds 10, 20 and 40: the median deviation from 20 is 10."""
    throughput = GangThroughput(1)
    for step, time in ((1, 0.0), (2, 1.0), (3, 1.5), (4, 1.75)):
        throughput.add(0, report(step, 20 + time))
    speed = throughput.speed()
    assert speed.jitter == pytest.approx(14.826)


def test_ranks_may_report_at_different_times() -> None:
    """A step is complete with its last rank, in order, whatever the order of reports."""
    throughput = GangThroughput(2)
    for step in (1, 2, 3):
        assert throughput.add(0, report(step, step)) == []
    assert throughput.add(1, report(1, 1.5)) == [1]
    assert throughput.add(1, report(2, 2.5)) == [2]
    progress = throughput.progress()
    assert progress.step == 2
    assert throughput.step_of(0) == 3
    assert throughput.step_of(5) is None


def test_reports_of_one_rank_alone() -> None:
    """After ten seconds without a word of the others, those that report are the gang."""
    throughput = GangThroughput(4)
    closed = [step for second in range(15) for step in throughput.add(0, report(second, second))]
    assert closed == list(range(15))
    assert throughput.total() == 10


def test_without_samples_there_is_no_speed() -> None:
    """Progress is there all the same."""
    throughput = GangThroughput(1)
    for step in (1, 2):
        throughput.add(0, {"step": step, "time": float(step), "loss": 0.5})
    assert throughput.speed() is None
    progress = throughput.progress()
    assert progress == Progress(2, None, None, None, "samples", 0.5, {})


def test_no_report_no_progress() -> None:
    """There is no progress before the first report."""
    assert GangThroughput(1).progress() is None
    assert GangThroughput(1).total() is None


def test_how_it_is_printed() -> None:
    """The lines people know."""
    progress = Progress(40, 300, 1, 5120.3, "images", 0.412, {})
    assert throughput_step_line(progress, Speed(5120.3, 31.2, 12.4)) == (
        "Step 40/300  images/sec: 5120.3 +/- 31.2 (jitter = 12.4)  loss: 0.412"
    )
    assert throughput_step_line(Progress(1, None, None, None, "samples", None, {}), None) == "Step 1"
    assert throughput_total_line("images", 5123.876) == "total images/sec: 5123.88"


def test_small_numbers_are_printed_as_more_than_nothing() -> None:
    """A loss of 0.0004, and a model that takes a minute for a sample."""
    progress = Progress(40, 300, 1, 0.0162, "samples", 0.00041234, {})
    assert throughput_step_line(progress, Speed(0.0162, 0.00012, 0.0)) == (
        "Step 40/300  samples/sec: 0.0162 +/- 0.00012 (jitter = 0)  loss: 4.123e-04"
    )
    assert throughput_step_line(replace(progress, loss=0.0), None) == "Step 40/300  loss: 0.000"
    assert throughput_total_line("samples", 0.0016234) == "total samples/sec: 0.00162"


def test_memory_is_bounded() -> None:
    """A rank that has stopped reporting does not make the others' reports pile up."""
    throughput = GangThroughput(2)
    throughput.add(1, report(1, 0))
    for step in range(1, 5000):
        throughput.add(0, report(step, step))
    assert len(throughput._open) <= 1000


def test_loss_and_metrics_are_means_over_ranks_in_the_shown_step() -> None:
    """Also if a rank is a step ahead, as when the other has failed."""
    throughput = GangThroughput(2)
    for step, rank in ((1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1), (4, 1)):
        throughput.add(rank, report(step, 100.0 + step, loss=1 / step, metrics={"accuracy": 0.1 * (rank + step)}))
    progress = throughput.progress()
    assert progress is not None
    assert (progress.step, progress.loss) == (3, pytest.approx(1 / 3))
    assert progress.metrics == {"accuracy": pytest.approx(0.35)}


def test_fields_that_a_report_leaves_out_keep_their_last_values() -> None:
    """A program may end with a report of its validation alone."""
    throughput = GangThroughput(2)
    for rank in range(2):
        throughput.add(rank, report(1, 100.0 + rank, totalSteps=2, epoch=3, loss=0.5 + rank))
        throughput.add(rank, {"step": 2, "time": 102.0 + rank, "unit": "samples", "metrics": {"f1": 0.75}})
    progress = throughput.progress()
    assert progress is not None
    assert (progress.step, progress.total_steps, progress.epoch, progress.loss) == (2, 2, 3, 1.0)
    assert progress.metrics == {"f1": 0.75}


def test_a_loss_that_is_not_finite_is_named_with_its_step() -> None:
    """If one rank's loss is NaN, the mean is NaN; the line names the first such step until all are finite again."""
    throughput = GangThroughput(2)

    def line(step: int, losses: tuple[Any, Any]) -> str:
        for rank, loss in enumerate(losses):
            known = {"notFinite": {"loss": loss}} if isinstance(loss, str) else {"loss": loss}
            throughput.add(rank, report(step, 100.0 + step, **known))
        progress = throughput.progress()
        assert progress is not None
        return throughput_step_line(progress, None)

    assert line(1, (0.5, 0.7)) == "Step 1  loss: 0.600"
    assert line(2, (0.5, "NaN")) == "Step 2  loss: NaN since step 2 (rank 1)"
    assert line(3, ("Infinity", "NaN")) == "Step 3  loss: NaN since step 2 (rank 1)"
    assert line(4, ("Infinity", 0.5)) == "Step 4  loss: Infinity since step 3 (rank 0)"
    throughput.add(1, report(5, 105.0))
    assert line(5, (0.5, 0.7)) == "Step 5  loss: 0.600"
    assert str(throughput.first_bad_loss) == "NaN since step 2 (rank 1)"


def test_the_rank_whose_loss_was_first_not_finite_is_named_everywhere() -> None:
    """In the progress as in the failure, although another rank reports the same step later."""
    throughput = GangThroughput(2)
    for rank in (1, 0):
        throughput.add(rank, report(5, 105.0, notFinite={"loss": "NaN"}))
    progress = throughput.progress()
    assert progress is not None
    assert str(progress.not_finite["loss"]) == str(throughput.first_bad_loss) == "NaN since step 5 (rank 1)"
