"""Data-parallel training on device runtimes, such as PopART, that PyTorch, TensorFlow and JAX do not cover.

A runtime implements `DeviceSession` (accepts weights, returns gradients as they are ready); `DistributedOptimizer` runs
the optimizer on the host, `insert_host_allreduce` leaves it on the device.

Maturity: Experimental. Tested with a simulated device.
"""

from ringtrain import shutdown
from ringtrain.common.basics import init
from ringtrain_graphcore.device.distributed import (
    DistributedOptimizer,
    Options,
    broadcast_weights,
    insert_host_allreduce,
)
from ringtrain_graphcore.device.session import DeviceSession, HostCallbacks, Inbound, Parameter

__all__ = [
    "DeviceSession",
    "DistributedOptimizer",
    "HostCallbacks",
    "Inbound",
    "Options",
    "Parameter",
    "broadcast_weights",
    "init",
    "insert_host_allreduce",
    "shutdown",
]
