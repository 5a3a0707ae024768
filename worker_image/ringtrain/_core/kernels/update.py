"""Arguments of the optimizer updates that compiled code applies to weights right after a reduction."""

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
    """Optimizer rule, such as SGD or Adam, with its coefficients, as arguments of compiled code.

    `code`: value of the C enum `rule`. `spans`: one for each parameter of the whole own chunk, in order, as
    `structures.SPAN`; an update marks the parameters for which no rank has a gradient. `terms`: coefficients that the
    spans refer to, in the layout of native/optimizer.c.
    """

    code: int
    spans: NDArray[Any]
    terms: Sequence[ctypes.Structure]


@dataclass(frozen=True)
class Kept:
    """Buffers into which an update copies the old values of this rank's chunk: weights (or master weights) and states.

    `count`: one uint64 that grows by the elements that were copied and changed. Elements are changed in order.
    """

    arrays: tuple[Flat, ...]
    count: Flat


@dataclass(frozen=True)
class ChunkUpdate:
    """Optimizer update that compiled code applies to this rank's chunk after the gradients were reduced.

    `weights`: the whole buffer, as long as the gradients and of their dtype; its own chunk contains the weights to
    update. `states`: state arrays of the own chunk, in the rule's order, float32 or float64. `master`: the own chunk's
    weights in float32, if `weights` are of a half type. `last`: whether no other update follows. If True, this update
    returns only when all ranks have completed the update. `reduced`: array for the own chunk's reduced gradients, or
    None; may be the own chunk of the gradients. `kept`: buffers for the old values. `offset`: index of this part in the
    own chunk.
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
        """Return the update of only the elements `where`; `own` is this rank's chunk, to which states belong."""
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
    """Return `change` as a C struct. `weights`: address of the weights of each rank."""
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
