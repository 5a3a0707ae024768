"""Train a Keras model on many ranks, with the API of `horovod.tensorflow.keras`."""

from ringtrain.common import basics
from ringtrain.common.basics import *  # noqa: F403
from ringtrain_tensorflow.compression import Compression
from ringtrain_tensorflow.keras import callbacks, elastic
from ringtrain_tensorflow.keras.host_optimizer import HostOptimizer
from ringtrain_tensorflow.keras.load import load_model
from ringtrain_tensorflow.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from ringtrain_tensorflow.keras.values import (
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
