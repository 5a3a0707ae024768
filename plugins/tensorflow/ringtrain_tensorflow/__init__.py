"""Train a TensorFlow model on many ranks, with Horovod's API: `import ringtrain.tensorflow as hvd`."""

from ringtrain.adapter import missing

if reason := missing("tensorflow"):
    raise ModuleNotFoundError(reason, name="tensorflow")

from ringtrain.adapter import barrier
from ringtrain.common.basics import *  # noqa: F403
from ringtrain.common.util import check_extension, split_list
from ringtrain_tensorflow import elastic, mpi_ops
from ringtrain_tensorflow.compression import Compression
from ringtrain_tensorflow.host import HostStrategy
from ringtrain_tensorflow.keras.optimizer import PartialDistributedOptimizer
from ringtrain_tensorflow.mpi_ops import *  # noqa: F403
from ringtrain_tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from ringtrain_tensorflow.optimizer import DistributedOptimizer
from ringtrain_tensorflow.reduce import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter
from ringtrain_tensorflow.sync_batch_norm import SyncBatchNormalization
from ringtrain_tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from ringtrain_tensorflow.v1_optimizer import LocalGradientAggregationHelper
from ringtrain_tensorflow.variables import (
    BroadcastGlobalVariablesHook,
    broadcast_global_variables,
    broadcast_variables,
    refs_to_vars,
    vars_to_refs,
)

__all__ = [
    *mpi_ops.__all__,
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HostStrategy",
    "LocalGradientAggregationHelper",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_extension",
    "elastic",
    "grouped_allreduce",
    "grouped_reducescatter",
    "mpi_ops",
    "reducescatter",
    "refs_to_vars",
    "split_list",
    "vars_to_refs",
]


def __dir__() -> list[str]:
    return __all__
