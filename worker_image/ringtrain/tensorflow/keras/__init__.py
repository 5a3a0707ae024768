"""Train a Keras model on many ranks, with the names and semantics of `horovod.tensorflow.keras`."""

from ringtrain import cross_rank, cross_size, local_rank, local_size, rank, size
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
from ringtrain.tensorflow.compression import Compression
from ringtrain.tensorflow.keras import callbacks
from ringtrain.tensorflow.keras.load import load_model
from ringtrain.tensorflow.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from ringtrain.tensorflow.keras.values import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
