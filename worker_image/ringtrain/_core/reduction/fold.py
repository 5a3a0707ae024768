"""Fold of the contributions of all ranks in rank order, in compiled code or numpy.

`((g0 + g1) + g2) + …`, element by element, whatever the segment, bucket, transport or order of arrival: equal inputs
give bitwise equal results, on every rank and in every run. Between many pods, pods' sums are folded in pairs instead,
and between many ranks without pods the ranks (`communicators/pod_tree.py`). Half precision is folded in float32 and
rounded once; an average divides after the fold.
"""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.kernels.library import address_of, native_library
from ringtrain._core.kernels.update import ChunkUpdate, native_update
from ringtrain._core.reduction.ops import UFUNCS, ReduceOp
from ringtrain._core.wire.dtypes import CODES, HALVES, dtype_name

Flat = NDArray[Any]  # 1-d and contiguous

# Codes of kernels/native/fold.h.
OP_CODES: Final = {ReduceOp.Sum: 0, ReduceOp.Average: 0, ReduceOp.Min: 1, ReduceOp.Max: 2, ReduceOp.Product: 3}


class ReductionFold:
    """Reduction of one collective's segments over `size` ranks, always in rank order.

    Uses the compiled library if there is one, otherwise numpy. Both give bitwise the same result; the library takes
    0.5 ms instead of 25 ms for a float16 segment of 2 MiB from two ranks.
    """

    def __init__(self, op: ReduceOp, dtype: np.dtype[Any], size: int, own_position: int, native: bool = True) -> None:
        self._op = op
        self._size = size
        self._wide = dtype_name(dtype) in HALVES
        self._is_compiled = native and self._wide and can_fold_and_update()
        self._dtype = np.dtype(np.float32) if self._wide else dtype
        # Until the own contribution is folded, `out` may still contain it.
        self._out_is_free_from = max(own_position, 1)
        self._scratch: Flat = np.empty(0, self._dtype)

    @property
    def keeps_all(self) -> bool:
        """Return whether `fold` needs the contributions of all ranks at once, rather than only the last two."""
        return self._is_compiled

    def fold(self, contributions: Iterable[Flat], out: Flat) -> None:
        """Reduce `contributions`, one per rank in rank order, into `out`.

        `out` may be the memory of the own contribution. Each contribution is requested on demand, so that it can be
        read from the network at that time.
        """
        if self._is_compiled:  # one pass, without the GIL, so that peers are served at the same time
            FoldContributions(list(contributions), self._op, self._size).fold(out)
        else:
            self._fold_in_numpy(contributions, out)

    def _fold_in_numpy(self, contributions: Iterable[Flat], out: Flat) -> None:
        scratch = self._scratch_for(len(out))
        running: Flat | None = None
        for position, part in enumerate(contributions):
            if running is None:
                running = self._widened(part, scratch)
                continue
            into = out if position >= self._out_is_free_from and not self._wide else scratch
            UFUNCS[self._op](running, part, out=into)  # widens a half type
            running = into
        assert running is not None
        if self._op is ReduceOp.Average:
            running = np.divide(running, self._size, out=scratch if self._wide else out)
        if running is not out:
            out[...] = running
            if self._wide and self._op is ReduceOp.Average:  # a mean that underflows is 0, not -0
                out[(out == 0) & (running != 0)] = 0

    def _widened(self, part: Flat, scratch: Flat) -> Flat:
        if not self._wide:
            return part
        np.copyto(scratch, part)
        return scratch

    def _scratch_for(self, length: int) -> Flat:
        if len(self._scratch) < length:
            self._scratch = np.empty(length, self._dtype)
        return self._scratch[:length]


def can_fold_and_update() -> bool:
    """Return whether the compiled library is installed, which `FoldContributions` needs."""
    return native_library() is not None


@dataclass(frozen=True)
class FoldContributions:
    """Arguments of a reduction in compiled code: `parts` of some ranks, in rank order, continuing `before`.

    `before`: the fold of the earlier ranks, in the accumulator's dtype, or None if there are no earlier ranks. `size`:
    number of all ranks, for an average.
    """

    parts: Sequence[Flat]
    op: ReduceOp
    size: int
    before: Flat | None = None

    @property
    def _kind(self) -> tuple[int, int]:
        return CODES[dtype_name(self.parts[0].dtype)], OP_CODES[self.op]

    @property
    def _divisor(self) -> int:
        return self.size if self.op is ReduceOp.Average else 0

    @property
    def _before(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(None if self.before is None else address_of(self.before))

    @property
    def _parts(self) -> tuple[Any, int]:
        return _fold_addresses(self.parts), len(self.parts)

    def fold_partial(self, into: Flat) -> None:
        """Write the reduction without division to `into`, in the accumulator's dtype, for other ranks to continue.

        `into` may be one of the parts.
        """
        count = ctypes.c_size_t(len(into))
        target = ctypes.c_void_p(address_of(into))
        _fold_library().ringtrain_fold_partial(*self._kind, self._before, target, *self._parts, count)

    def fold(self, into: Flat) -> None:
        """Write the reduction of all parts to `into`, which may be one of them."""
        count = ctypes.c_size_t(len(into))
        target = ctypes.c_void_p(address_of(into))
        _fold_library().ringtrain_fold(*self._kind, self._divisor, self._before, target, *self._parts, count)

    def update(self, change: ChunkUpdate, copies: Sequence[Flat] = ()) -> None:
        """Reduce all parts and apply the update `change` in one pass; `copies` receive the new weights, too."""
        weights = _fold_addresses([change.weights, *copies])  # referenced by `given`
        given = native_update(change, weights)
        count = ctypes.c_uint64(len(change.weights))
        _fold_library().ringtrain_update(
            *self._kind, self._divisor, self._before, *self._parts, ctypes.byref(given), count
        )


def _fold_addresses(arrays: Sequence[Flat]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*map(address_of, arrays))


def _fold_library() -> ctypes.CDLL:
    library = native_library()
    assert library is not None, "call can_update first"
    return library
