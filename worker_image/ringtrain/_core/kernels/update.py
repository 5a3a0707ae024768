"""An update rule as compiled code takes it (`native/shm.h`), for those who hand it on without knowing rules."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ringtrain._core.kernels.library import address_of
from ringtrain._core.kernels.structures import UpdateStruct

Flat = NDArray[Any]


@dataclass(frozen=True)
class NativeRule:
    """`code`: of enum rule. `spans`: of the whole own chunk, one for each parameter in it, in their order, as
    `structures.SPAN` has them; an update notes there which of them no rank has a gradient of. `terms`: what spans
    point to: coefficients, as native/optimizer.c lays them out.
    """

    code: int
    spans: NDArray[Any]
    terms: Sequence[ctypes.Structure]


@dataclass(frozen=True)
class Kept:
    """Room for what an update changes: `arrays` get the own chunk's weights (or master) and states from before it.

    `count`: one uint64 that grows by the elements that are kept, and changed. Elements are changed in their order.
    """

    arrays: tuple[Flat, ...]
    count: Flat


@dataclass(frozen=True)
class ChunkUpdate:
    """What becomes of this rank's chunk of gradients once it is reduced.

    `weights`: the whole buffer, as long as the gradients and of their dtype; its own chunk holds the weights that
    are updated. `states`: of the own chunk, in the order in which the rule takes them, float32 or float64.
    `master`: the own chunk's weights in float32, where `weights` are of a half type. `last`: no other update
    follows: return when all ranks have done theirs. `reduced`: gets the own chunk's reduced gradients, if
    somebody wants them; may be the own chunk of the gradients. `kept`: gets what is changed. `offset`: where in
    the own chunk this part of it begins.
    """

    rule: NativeRule
    weights: Flat
    states: tuple[Flat, ...]
    master: Flat | None
    last: bool
    reduced: Flat | None = None
    kept: Kept | None = None
    offset: int = 0

    def cut(self, where: slice, own: slice) -> "ChunkUpdate":
        """The update of elements `where` of the buffer, of whose chunk this rank owns `own`."""
        within = slice(where.start - own.start, where.stop - own.start)
        return ChunkUpdate(
            self.rule,
            self.weights[where],
            tuple(state[within] for state in self.states),
            None if self.master is None else self.master[within],
            self.last,
            None if self.reduced is None else self.reduced[within],
            self.kept and Kept(tuple(array[within] for array in self.kept.arrays), self.kept.count),
            self.offset + within.start,
        )


def native_update(change: ChunkUpdate, weights: "ctypes.Array[ctypes.c_void_p]") -> UpdateStruct:
    """`change` as compiled code takes it. `weights`: where those of each rank begin."""
    return UpdateStruct(
        rule=change.rule.code,
        last=change.last,
        targets=len(weights),
        spans=address_of(change.rule.spans),
        offset=change.offset,
        weights=ctypes.addressof(weights),
        master=None if change.master is None else address_of(change.master),
        reduced=None if change.reduced is None else address_of(change.reduced),
        states=(ctypes.c_void_p * 2)(*map(address_of, change.states)),
        kept=(ctypes.c_void_p * 3)(*map(address_of, change.kept.arrays if change.kept else ())),
        kept_count=change.kept and address_of(change.kept.count),
    )
