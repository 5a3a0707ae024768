"""Barriers and allreduces of short arrays, which loops call again and again: compiled code from call to result."""

from typing import Any, Final

import numpy as np

from ringtrain._core.collectives.work import reduction_signature
from ringtrain._core.communicators.base import Communicator, ShortAllreduce, ShortReducer
from ringtrain._core.communicators.turn import Turn
from ringtrain._core.reduction.ops import Adasum, ReduceOp
from ringtrain._core.wire.signature import Signature

# Stands where an operation does, of an array without elements.
_BARRIER: Final[Any] = object()
_NOTHING: Final = np.empty(0, np.uint8)


def short_allreduce(communicator: Communicator, turn: Turn) -> ShortAllreduce:
    """The short way of `communicator`, which has none for most arrays.

    It raises ConfigurationError for an operation that has no meaning.
    """
    made = communicator.short_allreduce(_meaning, turn) if isinstance(communicator, ShortReducer) else None
    return made or _no_short_way


def short_barrier(allreduce: ShortAllreduce) -> bool:
    """Be a barrier of the ranks that `allreduce` reduces over. False: another way must be taken."""
    return allreduce(_NOTHING, _BARRIER, None, True) is not None


def _meaning(x: Any, op: ReduceOp, name: str | None) -> Signature | None:
    if op is _BARRIER:
        return Signature("barrier")
    if op is Adasum or not x.dtype.isnative:
        return None
    return reduction_signature("allreduce", [x], op, name)


def _no_short_way(x: Any, op: ReduceOp, name: str | None, in_place: bool) -> None:
    return None
