"""The numbers of communicators, dealt in one place: every rank deals the same, so frames of two never mix.

A number has 32 bits on the wire:

    0 ...                  process sets, in the order in which the world adds them; 0 is the world's own
    2**20 + 2**15 * s + i  further communicators of process set s: 0 for its named queue, then host
                           optimizers', of which each has a number of its own, closed ones too
    number + 2**30         what a communicator runs inside a host or through MPI, beside its network
    number + 2**31         what a named queue runs through torch.distributed, beside its communicator
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
    """The number of communicator `index` of a process set. Raises ConfigurationError where there are too many."""
    if index >= PER_SET:
        raise ConfigurationError(
            f"process set {process_set} has had {PER_SET - 1} optimizers, which is as many as it can have, closed "
            "ones included; make optimizers once a job, not once a step"
        )
    number = _FIRST_FURTHER + process_set * PER_SET + index
    if number >= _INSIDE:
        raise ConfigurationError(
            f"{process_set} process sets were added, which is as many as a job can have, removed ones included; "
            "add them once a job, not once a step"
        )
    return number


def inside_communicator_number(number: int) -> int:
    """The number of what communicator `number` runs beside its network."""
    return _INSIDE + number


def foreign_communicator_number(number: int) -> int:
    """The number of what runs through a library of others beside communicator `number`."""
    return _FOREIGN + number
