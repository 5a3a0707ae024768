"""The collectives under the module name that scripts know from Horovod."""

from ringtrain import cross_rank, cross_size, local_rank, local_size, rank, size
from ringtrain.common.util import gpu_available, handle_average_backwards_compatibility, num_rank_is_power_2
from ringtrain.errors import RingtrainError as HorovodInternalError
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
from ringtrain.torch.allgather import allgather, allgather_async, grouped_allgather, grouped_allgather_async
from ringtrain.torch.allreduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from ringtrain.torch.alltoall import alltoall, alltoall_async
from ringtrain.torch.barrier import barrier, join
from ringtrain.torch.broadcast import broadcast, broadcast_, broadcast_async, broadcast_async_
from ringtrain.torch.compression import Compression
from ringtrain.torch.handles import poll, synchronize
from ringtrain.torch.reducescatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from ringtrain.torch.sparse import sparse_allreduce_async

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "num_rank_is_power_2",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
