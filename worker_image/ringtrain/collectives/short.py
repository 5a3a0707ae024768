"""Allreduces of short arrays, as a loop calls them again and again: compiled code from the call to the result."""

from typing import Any

from ringtrain.collectives.work import reduction_signature
from ringtrain.communicators.base import Communicator, ShortAllreduce, ShortReducer
from ringtrain.communicators.turn import Turn
from ringtrain.reduction.ops import Adasum, ReduceOp
from ringtrain.wire.signature import Signature


def short_allreduce(communicator: Communicator, turn: Turn) -> ShortAllreduce:
    """The short way of `communicator`, which has none for most arrays.

    It raises ConfigurationError for an operation that has no meaning.
    """
    made = communicator.short_allreduce(_meaning, turn) if isinstance(communicator, ShortReducer) else None
    return made or _no_short_way


def _meaning(x: Any, op: ReduceOp, name: str | None) -> Signature | None:
    if op is Adasum or not x.dtype.isnative:
        return None
    return reduction_signature("allreduce", [x], op, name)


def _no_short_way(x: Any, op: ReduceOp, name: str | None, in_place: bool) -> None:
    return None
