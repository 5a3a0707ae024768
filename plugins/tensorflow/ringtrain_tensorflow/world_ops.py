"""Operations that return rank, size and similar numbers of the world in which the graph runs.

A graph of an elastic job outlives the world in which it was built. The number of ranks is evaluated when such a graph
runs; in other jobs it is a constant of the graph.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import ringtrain as rt
from ringtrain import ProcessSet
from ringtrain.adapter import current_world, is_elastic, join_after_updates, members, trains_alone
from ringtrain_tensorflow.calls import host_call

# Return values of Horovod's process_set_included_op.
PROCESS_SET_ERROR_INIT = -1
PROCESS_SET_ERROR_UNKNOWN_SET = -2


def rank_op(name: str | None = None) -> Any:
    """Return this process's rank."""
    return _scalar_operation(rt.rank)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return the number of ranks in a process set."""
    return _scalar_operation(lambda: len(current_world().ranks_of_set(process_set_id) or ()))


def local_rank_op(name: str | None = None) -> Any:
    """Return this process's rank on its host."""
    return _scalar_operation(rt.local_rank)


def local_size_op(name: str | None = None) -> Any:
    """Return the number of ranks on this host."""
    return _scalar_operation(rt.local_size)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return 1 if this process is in the set, 0 if not, -1 before init(), -2 for a set that does not exist."""

    def included() -> int:
        if not rt.is_initialized():
            return PROCESS_SET_ERROR_INIT
        ranks = current_world().ranks_of_set(process_set_id)
        return PROCESS_SET_ERROR_UNKNOWN_SET if ranks is None else int(rt.rank() in ranks)

    return _scalar_operation(included)


def join() -> Any:
    """Declare that this rank has no more data, and wait until all ranks have done so; return the last rank to join.

    Meanwhile this rank contributes zeros to the others' sums and averages. A HostOptimizer requires equally many steps
    on every rank; otherwise join raises MismatchError.
    """
    return _scalar_operation(join_after_updates)


@tf.autograph.experimental.do_not_convert
def _scalar_operation(function: Callable[[], int]) -> Any:
    (value,) = host_call(lambda: [np.asarray(function(), np.int32)], [], [tf.int32], [[]])
    return value


def is_always_alone(process_set: ProcessSet) -> bool:
    """Return whether new operations need no reduction, because this rank shares gradients with no other rank of
    `process_set`, now or in any later world."""
    return trains_alone(process_set) and not may_run_in_later_world()


def members_as(process_set: ProcessSet, dtype: Any) -> Any:
    """Return the number of ranks in `process_set` as a tensor of `dtype`."""
    if not may_run_in_later_world():
        return tf.cast(members(process_set), dtype)

    def count() -> list[Any]:
        return [np.asarray(1 if trains_alone(process_set) else members(process_set), np.int32)]

    return tf.cast(host_call(count, [], [tf.int32], [[]])[0], dtype)


def may_run_in_later_world() -> bool:
    """Return whether new operations may also run in a later world (with other ranks) of an elastic job."""
    return is_elastic() and not tf.executing_eagerly()
