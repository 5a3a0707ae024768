"""Facts about the queues as operations: their value is looked up when the graph runs, not when it is made."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import ringtrain as rt
from ringtrain._core.negotiation import queues
from ringtrain.tensorflow.calls import host_call

# What process_set_included_op returns where Horovod's does.
PROCESS_SET_ERROR_INIT = -1
PROCESS_SET_ERROR_UNKNOWN_SET = -2


def rank_op(name: str | None = None) -> Any:
    """This process's rank."""
    return _scalar(rt.rank)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Number of ranks in a process set."""
    return _scalar(lambda: len(queues.ranks_of_id(process_set_id) or ()))


def local_rank_op(name: str | None = None) -> Any:
    """This process's rank on its host."""
    return _scalar(rt.local_rank)


def local_size_op(name: str | None = None) -> Any:
    """Number of ranks on this host."""
    return _scalar(rt.local_size)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this process is in the set, 0 if not, -1 before init(), -2 for a set that does not exist."""

    def included() -> int:
        if not rt.is_initialized():
            return PROCESS_SET_ERROR_INIT
        ranks = queues.ranks_of_id(process_set_id)
        return PROCESS_SET_ERROR_UNKNOWN_SET if ranks is None else int(rt.rank() in ranks)

    return _scalar(included)


def join() -> Any:
    """Say that this rank has no more data, and wait until all ranks have; return the last rank to join.

    Meanwhile it contributes zeros to what the others sum or average.
    """
    return _scalar(queues.join)


@tf.autograph.experimental.do_not_convert
def _scalar(function: Callable[[], int]) -> Any:
    (value,) = host_call(lambda: [np.asarray(function(), np.int32)], [], [tf.int32], [[]])
    return value
