"""Allreduces of short arrays, as a loop calls them again and again: what is the same in each call is kept."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ringtrain.collectives.work import reduction_signature
from ringtrain.communicators.base import ShortReducer
from ringtrain.reduction.ops import Adasum, ReduceOp

Array = NDArray[Any]

_KEPT: Final = 256

# Leaves the reduction of the first array in the second.
Reduction = Callable[[Array, Array], None]


def reduced(reduction: Reduction, source: Array, in_place: bool) -> Array:
    result = source if in_place else np.empty_like(source)
    reduction(source, result)
    return result


class ShortReductions:
    """Those of one communicator that were asked for so far."""

    def __init__(self, communicator: ShortReducer) -> None:
        self._communicator = communicator
        self._kept: dict[tuple[Any, ...], Reduction | None] = {}

    def of(self, x: Any, op: ReduceOp, name: str | None) -> Reduction | None:
        """The short way to reduce `x`, or None. Raises ConfigurationError for an `op` that has no meaning.

        Ranks need not take the same way: what they exchange and compare is the same.
        """
        if type(x) is not np.ndarray or not x.flags.carray:
            return None
        kind = x.dtype, x.shape, op, name
        try:
            return self._kept[kind]
        except KeyError:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
        found = None
        if op is not Adasum and x.dtype.isnative:
            what = reduction_signature("allreduce", [x], op, name)
            found = self._communicator.short_reduction(what, x, op)
        self._kept[kind] = found
        return found
