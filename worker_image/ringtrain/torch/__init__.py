"""Train a PyTorch model on many ranks, with Horovod's names and semantics: `import ringtrain.torch as hvd`."""

from ringtrain.adapter import missing

if reason := missing("torch"):
    raise ModuleNotFoundError(reason, name="torch")

from ringtrain.common.basics import *  # noqa: F403
from ringtrain.common.util import check_extension, split_list
from ringtrain.torch import elastic, mpi_ops
from ringtrain.torch.diloco import DiLoCo
from ringtrain.torch.host_optimizer import HostOptimizer
from ringtrain.torch.mpi_ops import *  # noqa: F403
from ringtrain.torch.objects import allgather_object, broadcast_object
from ringtrain.torch.optimizer import DistributedOptimizer
from ringtrain.torch.state import broadcast_optimizer_state, broadcast_parameters
from ringtrain.torch.sync_batch_norm import SyncBatchNorm
from ringtrain.torch.training_state import RandomGenerators, TrainingState

__all__ = [
    *mpi_ops.__all__,
    "DiLoCo",
    "DistributedOptimizer",
    "HostOptimizer",
    "RandomGenerators",
    "SyncBatchNorm",
    "TrainingState",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_extension",
    "elastic",
    "mpi_ops",
    "split_list",
]


def __dir__() -> list[str]:
    return __all__
