"""Train a Keras model on many ranks, with the names and semantics of `horovod.tensorflow.keras`."""

from ringtrain.common import basics
from ringtrain.common.basics import *  # noqa: F403
from ringtrain.tensorflow.compression import Compression
from ringtrain.tensorflow.keras import callbacks, elastic
from ringtrain.tensorflow.keras.host_optimizer import HostOptimizer
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
    *basics.__all__,
    "Compression",
    "DistributedOptimizer",
    "HostOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
]


def __dir__() -> list[str]:
    return __all__
