"""Learning-rate schedules against their definitions."""

from collections.abc import Callable

import pytest

from ringtrain.errors import ConfigurationError
from ringtrain.optim import Constant, Cosine, StepDecay, Warmup


def test_constant_is_constant() -> None:
    """The same factor at every step."""
    assert [Constant(0.5)(step) for step in (0, 1000)] == [0.5, 0.5]


def test_step_decay_multiplies_at_each_milestone() -> None:
    """The milestone itself is the first step of the new rate."""
    schedule = StepDecay((10, 20), gamma=0.1)
    assert [schedule(step) for step in (0, 9, 10, 19, 20, 99)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_cosine_falls_from_one_to_its_floor_and_stays() -> None:
    """Half a cosine: 1 at the start, the middle half-way, the floor from the end on."""
    schedule = Cosine(100, floor=0.2)
    assert [schedule(step) for step in (0, 50, 100, 500)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert Cosine(100)(25) == pytest.approx((1 + 2**-0.5) / 2)


def test_warmup_without_steps_is_the_schedule_after_it() -> None:
    """Zero steps of warm-up: scaled from the first step on."""
    assert Warmup(0, scale=4)(0) == 4.0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: StepDecay((20, 10)), "StepDecay: milestones are (20, 10); expected increasing steps"),
        (lambda: Cosine(0), "Cosine: total_steps is 0; expected at least 1"),
        (lambda: Warmup(-1), "Warmup: steps is -1; expected 0 or more"),
    ],
)
def test_a_schedule_refuses_what_makes_no_sense(build: Callable[[], object], message: str) -> None:
    """The error names the schedule, the setting and its value."""
    with pytest.raises(ConfigurationError) as error:
        build()
    assert str(error.value) == message
