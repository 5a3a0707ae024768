"""Interfaces for device libraries of collectives: tensors that they exchange, and sums within a node."""

from ringtrain._core.communicators.base import Communicator
from ringtrain._core.communicators.foreign import ForeignCommunicatorCalls, exchange_values
from ringtrain._core.negotiation.execution import FusedRequestBatch, SubmittedTensors
from ringtrain._core.negotiation.request import CollectiveKind, NamedRequest
from ringtrain._core.process_groups.group import PendingCollective, ProcessGroup
from ringtrain._core.process_groups.process_sets import number_of
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.reduction.cuts import even_bounds
from ringtrain.optim.arenas import ParameterArenas
from ringtrain.optim.layout import Bucket, Layout
from ringtrain.optim.spans import ABSENT, parameter_beginnings

__all__ = [
    "ABSENT",
    "Bucket",
    "CollectiveKind",
    "Communicator",
    "ForeignCommunicatorCalls",
    "FusedRequestBatch",
    "Layout",
    "NamedRequest",
    "ParameterArenas",
    "PendingCollective",
    "ProcessGroup",
    "ProcessGroupContext",
    "SubmittedTensors",
    "even_bounds",
    "exchange_values",
    "number_of",
    "parameter_beginnings",
]


def __dir__() -> list[str]:
    return __all__
