"""Train a PyTorch model on many ranks, with Horovod's names and semantics: `import ringtrain.torch as hvd`."""

from typing import TYPE_CHECKING

from ringtrain.adapter import missing

if reason := missing("torch"):
    raise ModuleNotFoundError(reason, name="torch")

from ringtrain.common.basics import *  # noqa: F403
from ringtrain.common.util import check_extension, split_list
from ringtrain.shared.plugins import load_on_use
from ringtrain_torch import elastic, mpi_ops
from ringtrain_torch.host_optimizer import HostOptimizer
from ringtrain_torch.mpi_ops import *  # noqa: F403
from ringtrain_torch.objects import allgather_object, broadcast_object
from ringtrain_torch.optimizer import DistributedOptimizer
from ringtrain_torch.state import broadcast_optimizer_state, broadcast_parameters
from ringtrain_torch.sync_batch_norm import SyncBatchNorm
from ringtrain_torch.training_state import RandomGenerators, TrainingState

if TYPE_CHECKING:
    from ringtrain_torch.diloco import DiLoCo as DiLoCo

__getattr__ = load_on_use(__name__, DiLoCo="ringtrain_torch.diloco")

__all__ = [
    *mpi_ops.__all__,
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
