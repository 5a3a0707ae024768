"""Train a Keras model on many ranks, with Horovod's names and semantics: `import ringtrain.keras as hvd`."""

from ringtrain import cross_rank, cross_size, local_rank, local_size, rank, size
from ringtrain.errors import RingtrainError as HorovodInternalError
from ringtrain.keras import callbacks
from ringtrain.keras.load import load_model
from ringtrain.keras.optimizer import PartialDistributedOptimizer
from ringtrain.keras.order import DistributedOptimizer
from ringtrain.keras.values import allgather, allreduce, broadcast, broadcast_global_variables, reducescatter
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
from ringtrain.negotiation.ops import Adasum, Average, Max, Min, Product, Sum
from ringtrain.negotiation.process_sets import ProcessSet
from ringtrain.negotiation.world import (
    add_process_set,
    global_process_set,
    init,
    is_homogeneous,
    is_initialized,
    remove_process_set,
    shutdown,
    start_timeline,
    stop_timeline,
)
from ringtrain.tensorflow.compression import Compression

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
