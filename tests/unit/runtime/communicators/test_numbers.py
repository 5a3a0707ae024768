"""Numbers of communicators: no two have the same, and a job that runs out of them is told so."""

import pytest

from ringtrain._core.communicators.numbers import (
    PER_SET,
    foreign_communicator_number,
    further_communicator_number,
    inside_communicator_number,
)
from ringtrain.errors import ConfigurationError


def test_kinds_of_communicators_never_share_a_number() -> None:
    last_set = 2**15 - 33
    ends = [
        further_communicator_number(0, 0),
        further_communicator_number(0, PER_SET - 1),
        further_communicator_number(1, 0),
    ]
    ends += [
        further_communicator_number(last_set, PER_SET - 1),
        inside_communicator_number(0),
        inside_communicator_number(ends[-1]),
    ]
    ends += [
        foreign_communicator_number(0),
        foreign_communicator_number(further_communicator_number(last_set, PER_SET - 1)),
    ]
    assert ends == sorted(set(ends))
    assert ends[-1] < 2**32


def test_an_optimizer_or_a_set_too_many_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=f"process set 3 has had {PER_SET - 1} optimizers"):
        further_communicator_number(3, PER_SET)
    with pytest.raises(ConfigurationError, match="32736 process sets were added"):
        further_communicator_number(2**15 - 32, 0)
