"""Collectives and information about the world, under Horovod's module name for TensorFlow."""

from ringtrain.common import basics
from ringtrain.common.basics import *  # noqa: F403
from ringtrain.common.util import check_num_rank_power_of_2, gpu_available, handle_average_backwards_compatibility
from ringtrain_tensorflow.gather import allgather, alltoall, broadcast, grouped_allgather
from ringtrain_tensorflow.variables import broadcast_
from ringtrain_tensorflow.world_ops import (
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)

__all__ = [
    *basics.__all__,
    "allgather",
    "alltoall",
    "broadcast",
    "broadcast_",
    "check_num_rank_power_of_2",
    "gpu_available",
    "grouped_allgather",
    "handle_average_backwards_compatibility",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]
