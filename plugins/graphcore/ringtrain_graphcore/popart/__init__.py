"""Train a PopART session on many ranks, by the names of Graphcore's Horovod extension: `import ringtrain.popart as
hvd`.

PopART is imported when a session of its own is used, and not before. A `ringtrain.device.DeviceSession` is taken
everywhere in its place.

Maturity: Experimental. Seen with a stand-in for PopART's session, never with PopART.
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
