"""Numbers of communicators, which mark their frames. Every rank assigns the same numbers, so that frames never mix.

A number has 32 bits on the wire:

    0 ...                  process sets, in the order in which the world adds them; 0 is the world's own
    2**20 + 2**15 * s + i  further communicators of process set s: 0 for its named queue, then host
                           optimizers', each with its own number, including closed ones
    number + 2**30         traffic of a communicator within a host or through MPI, in parallel to its network
    number + 2**31         traffic of a named queue through torch.distributed, in parallel to its communicator
"""

from typing import Final

from ringtrain.errors import ConfigurationError

WORLD: Final = 0  # the process set of all ranks
QUEUE: Final = 0  # index of a set's named queue among its further communicators
PER_SET: Final = 1 << 15

_FIRST_FURTHER: Final = 1 << 20
_INSIDE: Final = 1 << 30
_FOREIGN: Final = 1 << 31


def further_communicator_number(process_set: int, index: int) -> int:
    """Return the number of a set's additional communicator `index`. Raises ConfigurationError if there are too many."""
    if index >= PER_SET:
        raise ConfigurationError(
            f"process set {process_set} has had {PER_SET - 1} optimizers, the maximum, including closed "
            "ones; create optimizers once per job, not once per step"
        )
    number = _FIRST_FURTHER + process_set * PER_SET + index
    if number >= _INSIDE:
        raise ConfigurationError(
            f"{process_set} process sets were added, the maximum, including removed ones; "
            "add them once per job, not once per step"
        )
    return number


def inside_communicator_number(number: int) -> int:
    """Return the number under which communicator `number` exchanges data by shared memory or MPI."""
    return _INSIDE + number


def foreign_communicator_number(number: int) -> int:
    """Return the number that identifies calls of communicator `number` that another library executes."""
    return _FOREIGN + number
