"""Train on device runtimes that are no framework.

A runtime offers a `Session` (weights in, gradients out as they are ready); `DistributedOptimizer` keeps the
optimizer on the host, `insert_host_allreduce` leaves it on the device. `SimulatedSession` is a runtime to try them
with.
"""

from ringtrain.device.distributed import DistributedOptimizer, Options, broadcast_weights, insert_host_allreduce
from ringtrain.device.session import Inbound, Parameter, Session, Streams
from ringtrain.device.simulated import Program, SimulatedSession
from ringtrain.negotiation.queues import init
from ringtrain.process_groups.context import shutdown

__all__ = [
    "DistributedOptimizer",
    "Inbound",
    "Options",
    "Parameter",
    "Program",
    "Session",
    "SimulatedSession",
    "Streams",
    "broadcast_weights",
    "init",
    "insert_host_allreduce",
    "shutdown",
]
