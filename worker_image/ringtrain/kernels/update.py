"""An update rule as compiled code takes it (`native/shm.h`), for those who hand it on without knowing rules."""

import ctypes
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Flat = NDArray[Any]


@dataclass(frozen=True)
class NativeRule:
    """`code`: of enum rule. `terms`: its coefficients, as native/optimizer.c lays them out."""

    code: int
    terms: ctypes.Structure


@dataclass(frozen=True)
class ChunkUpdate:
    """What becomes of this rank's chunk of gradients once it is reduced.

    `weights`: the whole buffer, as long as the gradients and of their dtype; its own chunk holds the weights that
    are updated. `states`: of the own chunk, in the order in which the rule takes them, float32 or float64.
    `master`: the own chunk's weights in float32, where `weights` are of a half type. `last`: no other update
    follows: return when all ranks have done theirs.
    """

    rule: NativeRule
    weights: Flat
    states: tuple[Flat, ...]
    master: Flat | None
    last: bool
