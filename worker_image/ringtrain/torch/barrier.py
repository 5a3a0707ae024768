"""Meet without data: barrier, and join for ranks whose data ends early."""

from ringtrain.negotiation.queues import barrier as _barrier
from ringtrain.negotiation.queues import join as _join
from ringtrain.process_groups.process_sets import ProcessSet, global_process_set


def join(device: int = -1) -> int:
    """Say that this rank has no more data, and wait until all have said so; return the last rank to join.

    Meanwhile it contributes zeros to what the others sum or average. `device`: accepted for Horovod's sake; zeros
    are made in host memory.
    """
    return _join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when every rank of `process_set` has called it."""
    _barrier(process_set)
