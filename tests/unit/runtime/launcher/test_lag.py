"""Detection of the slowest rank by the times at which ranks report the same step."""

import pytest

from ringtrain_job.launcher.throughput import GangThroughput


def _report(step: int, time: float) -> dict[str, float]:
    return {"step": step, "time": time, "samples": 2}


def test_the_lag_is_counted_from_the_first_rank_of_a_step() -> None:
    """The times in the reports count, not the order of their arrival."""
    throughput = GangThroughput(2)
    for step in range(10):
        throughput.add(1, _report(step, step + 0.5))
        throughput.add(0, _report(step, step + 0.25))
    assert (throughput.lag.of(0), throughput.lag.of(1)) == (0.0, 0.25)
    progress = throughput.progress()
    assert progress.samples == 40


def test_the_newest_steps_count() -> None:
    """A rank that was late and is not any more is not late."""
    throughput = GangThroughput(2)
    for step in range(100):
        throughput.add(0, _report(step, step))
        throughput.add(1, _report(step, step + (0.5 if step < 50 else 0.0)))
    assert throughput.lag.of(1) == 0.0


@pytest.mark.parametrize("steps", [10, 5000])
def test_a_rank_that_hangs_fills_no_memory(steps: int) -> None:
    """Times of the other ranks' reports are stored for a limited number of steps."""
    throughput = GangThroughput(2)
    throughput.add(1, _report(0, 0))
    for step in range(steps):
        throughput.add(0, _report(step, step / 1000))
    assert sum(len(entry.times) for entry in throughput._open.values()) <= 51
    assert throughput.lag.of(1) == 0.0
    throughput.keep([0])
    assert throughput.lag.of(1) is None
