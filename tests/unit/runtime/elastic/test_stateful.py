"""Objects that count as stateful, in every version of Python."""

from typing import Any

import pytest

from ringtrain.elastic import State
from ringtrain.elastic.handlers import is_stateful
from ringtrain.errors import ConfigurationError


class Schedule:
    """Has a state."""

    def __init__(self) -> None:
        self.step = 3

    def state_dict(self) -> dict[str, int]:
        """Return the state to continue from."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from `state`."""
        self.step = state["step"]


class PassingOn:
    """As wrappers of schedules and optimizers do; what it wraps has all methods."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)


def test_a_wrapper_that_passes_methods_on_has_the_state_of_what_it_wraps() -> None:
    """`isinstance` with a protocol sees that in Python 3.11 alone."""
    schedule = Schedule()
    state = State(schedule=PassingOn(schedule))
    schedule.step = 4
    state.restore()
    assert schedule.step == 3


@pytest.mark.parametrize("value", [Schedule, PassingOn([1]), object()], ids=["a class", "of a list", "an object"])
def test_others_have_none(value: object) -> None:
    """They are plain data, or refused by their name."""
    if not isinstance(value, type):
        assert not is_stateful(value)
    with pytest.raises(ConfigurationError, match="value"):
        State(value=value)
