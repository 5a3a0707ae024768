"""Training of a PopART session on many ranks, as with Graphcore's Horovod extension: `import ringtrain.popart as hvd`.

PopART is imported only when one of its sessions is used. A `ringtrain.device.DeviceSession` is accepted instead.

Maturity: Experimental. Tested with a stand-in for PopART's session, never with PopART.
"""

from ringtrain import local_rank, local_size, rank, shutdown, size
from ringtrain.common.basics import init
from ringtrain_graphcore.popart.optimizer import DistributedOptimizer, broadcast_weights
from ringtrain_graphcore.popart.session import PopartSession

__all__ = [
    "DistributedOptimizer",
    "PopartSession",
    "broadcast_weights",
    "init",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]
