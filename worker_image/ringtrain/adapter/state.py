"""Handlers and codecs of a framework's values: in the commits of an elastic state, and in checkpoints."""

from ringtrain.checkpoint.codecs import Codec
from ringtrain.checkpoint.format import read_state_of, write_state
from ringtrain.elastic.handlers import ElasticOptimizer, ElasticOptimizerHandler, StatefulObjectHandler
from ringtrain.elastic.state import ADAPTERS, COMPANIONS, HANDLERS, ElasticStateAdapter
from ringtrain.elastic.transfer import broadcast as broadcast_state
from ringtrain.optim.recovery import StatefulObject

__all__ = [
    "ADAPTERS",
    "COMPANIONS",
    "HANDLERS",
    "Codec",
    "ElasticOptimizer",
    "ElasticOptimizerHandler",
    "ElasticStateAdapter",
    "StatefulObject",
    "StatefulObjectHandler",
    "broadcast_state",
    "read_state_of",
    "write_state",
]


def __dir__() -> list[str]:
    return __all__
