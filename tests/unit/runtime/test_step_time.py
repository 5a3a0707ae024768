"""Step time of a process by part: each moment counts once, in the training thread's current part."""

import threading
from collections.abc import Iterator

import pytest
from support.small_job import Clock

from ringtrain import step_time, timeline
from ringtrain.step_time import StepTime

INPUT, REDUCTION, UPDATE, _, HIDDEN = 0, 1, 2, 3, 3


@pytest.mark.parametrize(
    ("inside", "counts"),
    [
        pytest.param([INPUT], "inputWait", id="input"),
        pytest.param([REDUCTION], "reductionWait", id="reduction"),
        pytest.param([REDUCTION, REDUCTION], "reductionWait", id="two-threads-wait"),
        pytest.param([INPUT, REDUCTION], "reductionWait", id="a-prefetching-thread-waits-for-input"),
        pytest.param([HIDDEN], None, id="an-update-beside-the-backward-pass-is-hidden"),
        pytest.param([HIDDEN, REDUCTION], "updateTime", id="training-waits-for-the-update"),
        pytest.param([UPDATE], "updateTime", id="the-frameworks-own-update"),
        pytest.param([UPDATE, REDUCTION], "reductionWait", id="a-reduction-within-the-update"),
        pytest.param([], None, id="compute"),
    ],
)
def test_each_moment_counts_once(inside: list[int], counts: str | None) -> None:
    """In one part, or in none: then it is compute."""
    clock = Clock()
    times = StepTime(clock)
    for part in inside:
        times.enter(part)
    clock.now += 2.0
    for part in inside:
        times.leave(part)
    clock.now += 1.0
    assert {name: seconds for name, seconds in times.take().items() if seconds} == (
        {counts: 2.0} if counts is not None else {}
    )
    assert not any(times.take().values())


def test_what_is_under_way_counts_until_now() -> None:
    """A report in the middle of a wait has its first half, the next one its second."""
    clock = Clock()
    times = StepTime(clock)
    times.enter(INPUT)
    clock.now += 1.0
    assert times.take() == {"inputWait": 1.0}
    clock.now += 2.0
    times.leave(INPUT)
    clock.now += 4.0
    assert times.take() == {"inputWait": 2.0}


def test_what_was_too_short_to_be_entered_counts_once() -> None:
    """Since somebody asked last; not where another thread is in a part."""
    clock, short_s = Clock(), [7.0]
    times = StepTime(clock)
    times.follow(lambda: short_s.pop() if short_s else 0.0)
    clock.now += 1.0
    short_s.append(0.5)
    assert times.take() == {"reductionWait": 0.5}
    times.enter(INPUT)
    clock.now += 2.0
    short_s.append(1.0)
    times.leave(INPUT)
    clock.now += 4.0
    short_s.append(4.0)
    assert times.take() == {"inputWait": 2.0, "reductionWait": 4.0}


@pytest.fixture
def times() -> Iterator[tuple[StepTime, Clock]]:
    """The process's own, on a clock of the test's."""
    clock = Clock()
    step_time.measured.reset(clock)
    yield step_time.measured, clock
    step_time.measured.reset()


def test_a_thread_beside_training_holds_nothing_up(times: tuple[StepTime, Clock]) -> None:
    """Waits of a background thread are not measured."""

    def wait() -> None:
        step_time.mark_background_thread()
        with step_time.REDUCTION:
            times[1].now += 5.0

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert times[0].take() == {}


def test_batches_of_any_loader(times: tuple[StepTime, Clock]) -> None:
    """`timeline.inputs` measures how long each takes to come, and not what is done with it."""

    def loader() -> Iterator[int]:
        for batch in range(3):
            times[1].now += 1.0
            yield batch

    seen = []
    for batch in timeline.inputs(loader()):
        seen.append(batch)
        times[1].now += 10.0
    assert (seen, times[0].take()) == ([0, 1, 2], {"inputWait": 3.0})
