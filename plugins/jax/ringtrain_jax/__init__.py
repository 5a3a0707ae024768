"""Train a JAX model on many ranks, with Horovod's names and semantics: `import ringtrain.jax as hvd`.

Maturity: Experimental. Tested on CPUs.
"""

from typing import TYPE_CHECKING

from ringtrain.adapter import missing

if reason := missing("jax"):
    raise ModuleNotFoundError(reason, name="jax")

from ringtrain.adapter import barrier
from ringtrain.common import basics
from ringtrain.common.basics import *  # noqa: F403
from ringtrain.shared.plugins import load_on_use
from ringtrain_jax import elastic_state  # noqa: F401
from ringtrain_jax.cluster import add_to_clusters
from ringtrain_jax.collectives import allgather, allreduce, alltoall, broadcast, join, reducescatter
from ringtrain_jax.gradients import grad, value_and_grad
from ringtrain_jax.host_optimizer import HostOptimizer
from ringtrain_jax.objects import allgather_object, broadcast_object, broadcast_parameters
from ringtrain_jax.trees import from_state_dict, to_state_dict

add_to_clusters()

if TYPE_CHECKING:
    from ringtrain_jax.diloco import DiLoCo as DiLoCo

__getattr__ = load_on_use(__name__, DiLoCo="ringtrain_jax.diloco")

__all__ = [
    "HostOptimizer",
    *basics.__all__,
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "from_state_dict",
    "grad",
    "join",
    "reducescatter",
    "to_state_dict",
    "value_and_grad",
]


def __dir__() -> list[str]:
    return __all__
