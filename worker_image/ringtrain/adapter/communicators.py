"""Interface for plugins that move the bytes of collectives, or exchange the ranks' addresses.

* Entry point `ringtrain.communicators`, named by a value of `RINGTRAIN_TRANSPORT`: a function `open(member,
  process_set, network)` that returns a `Communicator` for the ranks of `network`. Collective.
* Entry point `ringtrain.rendezvous`, named by the launcher that started the ranks: a function `rendezvous(found, env,
  timeout_s)` that returns the addresses of all ranks, by rank.
"""

from ringtrain._core.communicators.base import Communicator
from ringtrain._core.communicators.exchange import ExchangeCommunicator
from ringtrain._core.communicators.numbers import inside_communicator_number
from ringtrain._core.reduction.cuts import Bounds, cut_segments, even_bounds, length_offsets
from ringtrain._core.reduction.fold import Flat, ReductionFold
from ringtrain._core.reduction.ops import ReduceOp
from ringtrain._core.wire.signature import WireSignature, with_layout
from ringtrain._core.world.failure_state import PeersStalled, RankActivity
from ringtrain._core.world.membership import WorldMembership
from ringtrain._core.world.mpi_environment import MpiRank
from ringtrain.shared.ports import HeldPorts

__all__ = [
    "Bounds",
    "Communicator",
    "ExchangeCommunicator",
    "Flat",
    "HeldPorts",
    "MpiRank",
    "PeersStalled",
    "RankActivity",
    "ReduceOp",
    "ReductionFold",
    "WireSignature",
    "WorldMembership",
    "cut_segments",
    "even_bounds",
    "inside_communicator_number",
    "length_offsets",
    "with_layout",
]


def __dir__() -> list[str]:
    return __all__
