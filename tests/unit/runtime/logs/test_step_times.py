"""Use of the ranks' time, and the rank for which the others wait."""

from typing import Any

import pytest

from ringtrain_job.launcher.throughput import GangThroughput
from ringtrain_job.logs.step_times import StepTimes


def _report(step: int, time: float, **parts: float) -> dict[str, Any]:
    return {"step": step, "time": time, **parts}


def _trained(times: StepTimes | GangThroughput, works: list[float], steps: int, every: int = 1) -> None:
    """Ranks train in step: each one works for its time, and all wait for the one that works longest."""
    for step in range(0, steps + 1, every):
        for rank, work in enumerate(works):
            waits = every * (max(works) - work)
            times.add(rank, _report(step, step * max(works), reductionWait=waits, updateTime=every * 0.25))


@pytest.mark.parametrize("every", [1, 5])
def test_parts_of_a_step(every: int) -> None:
    """Seconds of a step, whichever steps are reported; what no part has is compute."""
    times = StepTimes()
    _trained(times, [1.0, 2.0], 20, every)
    assert times.of(0) == {"compute": 0.75, "reduction": 1.0, "update": 0.25}
    assert times.of(1) == {"compute": 1.75, "reduction": 0.0, "update": 0.25}
    assert times.mean() == {"compute": 1.25, "reduction": 0.5, "update": 0.25}
    assert times.of(2) is None


def test_the_rank_that_works_longest_is_the_straggler() -> None:
    """Although all ranks report at the same times; by how much is compared with the median of the others."""
    times = StepTimes()
    _trained(times, [1.0, 1.0, 4.0, 1.5], 10)
    found = times.straggler()
    assert (found.rank, found.seconds, found.part) == (2, 3.0, 0.75)


@pytest.mark.parametrize(
    ("works", "steps"),
    [
        pytest.param([1.0, 1.2, 1.1], 10, id="a-fifth-longer"),
        pytest.param([1.0, 4.0], 3, id="few-steps"),
        pytest.param([4.0], 10, id="one-rank"),
        pytest.param([4.0, 4.0, 1.0], 10, id="most-are-slow"),
    ],
)
def test_no_straggler(works: list[float], steps: int) -> None:
    """There is no straggler if the others lose little time, or if there are few measurements."""
    times = StepTimes()
    _trained(times, works, steps)
    assert times.straggler() is None


def test_a_job_that_measures_its_input_alone() -> None:
    """The time of its ranks has two parts, input and the rest; there is no straggler, because waiting is unknown."""
    times = StepTimes()
    for step in range(10):
        times.add(0, _report(step, step, inputWait=0.5))
        times.add(1, _report(step, step))
    assert (times.of(0), times.of(1), times.longest()) == ({"input": 0.5, "compute": 0.5}, None, None)


def test_a_new_world_begins_anew() -> None:
    """The time in which the world was made again is no step's, and ranks that left are forgotten."""
    times = StepTimes()
    _trained(times, [1.0, 1.0, 4.0], 10)
    times.keep([0, 1])
    times.add(0, _report(11, 1000.0, reductionWait=0.0))
    times.add(0, _report(12, 1004.0, reductionWait=3.0))
    assert (times.of(0) or {})["compute"] == pytest.approx(0.75, abs=0.05)
    assert times.of(2) is None


def test_the_slowest_rank_is_the_straggler_unless_one_is_behind() -> None:
    """Of ranks in the same step none is named: some may only wait. A rank that has stopped has priority."""
    throughput = GangThroughput(4)
    _trained(throughput, [1.0, 1.0, 4.0, 1.0], 10)
    assert throughput.slowest(range(4)) == 2
    assert throughput.slowest([0, 1]) is None
    for rank in range(3):
        throughput.add(rank, _report(11, 44.0))
    assert throughput.slowest(range(4)) == 2
    for rank in range(3):
        throughput.add(rank, _report(12, 48.0))
    assert throughput.slowest(range(4)) == 3
    assert throughput.delaying_rank(range(4)) == 3


def test_no_rank_is_slow_where_a_step_is_alike() -> None:
    """No rank is marked for a difference of a millisecond or if ranks do not report; a straggler is marked."""
    alike, uneven, alone = GangThroughput(3), GangThroughput(3), GangThroughput(3)
    _trained(alike, [0.155, 0.1541, 0.155], 10)
    _trained(uneven, [0.1, 0.3, 0.1], 10)
    _trained(alone, [0.1], 10)
    assert [one.delaying_rank(range(3)) for one in (alike, uneven, alone)] == [None, 1, None]
