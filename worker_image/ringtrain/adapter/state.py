"""Interfaces through which a framework adds its value types to elastic states and checkpoints."""

from ringtrain.checkpoint.codecs import Codec
from ringtrain.checkpoint.format import read_state_of, write_state
from ringtrain.elastic.handlers import (
    HandlerParticipant,
    StatefulObject,
    StatefulObjectHandler,
    is_stateful,
    participants_by_type,
)
from ringtrain.elastic.optimizers import ElasticOptimizer, OptimizerParticipant
from ringtrain.elastic.transfer import broadcast as broadcast_state

__all__ = [
    "Codec",
    "ElasticOptimizer",
    "HandlerParticipant",
    "OptimizerParticipant",
    "StatefulObject",
    "StatefulObjectHandler",
    "broadcast_state",
    "is_stateful",
    "participants_by_type",
    "read_state_of",
    "write_state",
]


def __dir__() -> list[str]:
    return __all__
