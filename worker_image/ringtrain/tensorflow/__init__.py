"""Train a TensorFlow model on many ranks, with Horovod's names and semantics: `import ringtrain.tensorflow as
hvd`.
"""

from ringtrain import cross_rank, cross_size, local_rank, local_size, rank, size
from ringtrain.common.util import (
    check_extension,
    check_num_rank_power_of_2,
    gpu_available,
    handle_average_backwards_compatibility,
    split_list,
)
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
from ringtrain.negotiation.queues import (
    barrier,
    init,
    is_homogeneous,
    remove_process_set,
    start_timeline,
    stop_timeline,
)
from ringtrain.process_groups.context import is_initialized, shutdown
from ringtrain.process_groups.process_sets import ProcessSet, add_process_set, global_process_set
from ringtrain.reduction.ops import Adasum, Average, Max, Min, Product, Sum
from ringtrain.tensorflow import mpi_ops
from ringtrain.tensorflow.compression import Compression
from ringtrain.tensorflow.gather import allgather, alltoall, broadcast, grouped_allgather
from ringtrain.tensorflow.helpers import refs_to_vars, vars_to_refs
from ringtrain.tensorflow.host import HostStrategy
from ringtrain.tensorflow.keras.optimizer import PartialDistributedOptimizer
from ringtrain.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from ringtrain.tensorflow.optimizer import DistributedOptimizer
from ringtrain.tensorflow.reduce import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter
from ringtrain.tensorflow.sync_batch_norm import SyncBatchNormalization
from ringtrain.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from ringtrain.tensorflow.v1_optimizer import LocalGradientAggregationHelper
from ringtrain.tensorflow.variables import (
    BroadcastGlobalVariablesHook,
    broadcast_,
    broadcast_global_variables,
    broadcast_variables,
)
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
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostStrategy",
    "LocalGradientAggregationHelper",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_extension",
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
    "grouped_allreduce",
    "grouped_reducescatter",
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
    "mpi_ops",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "split_list",
    "start_timeline",
    "stop_timeline",
    "vars_to_refs",
]
