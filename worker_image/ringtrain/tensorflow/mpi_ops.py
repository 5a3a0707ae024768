"""Collectives and facts about the world, under the name of the module in which Horovod has them for TensorFlow."""

from ringtrain import cross_rank, cross_size, local_rank, local_size, rank, size
from ringtrain.common.util import check_num_rank_power_of_2, gpu_available, handle_average_backwards_compatibility
from ringtrain.negotiation.build_info import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from ringtrain.negotiation.queues import init, is_homogeneous, remove_process_set, start_timeline, stop_timeline
from ringtrain.process_groups.context import is_initialized, shutdown
from ringtrain.process_groups.process_sets import ProcessSet, add_process_set, global_process_set
from ringtrain.reduction.ops import Adasum, Average, Max, Min, Product, Sum
from ringtrain.tensorflow.gather import allgather, alltoall, broadcast, grouped_allgather
from ringtrain.tensorflow.variables import broadcast_
from ringtrain.tensorflow.world_ops import (
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "alltoall",
    "broadcast",
    "broadcast_",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]
