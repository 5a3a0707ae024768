"""The arithmetic of a reduction: contributions are folded in rank order, always.

`((g0 + g1) + g2) + …`, element by element, whatever the segment, the bucket, the transport or who came first: same
inputs give the same bits, on every rank and every run. Half precision is folded in float32 and rounded once; an
average divides after the fold.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtrain.collectives.ops import Op
from ringtrain.wire.dtypes import HALVES, dtype_name

Flat = NDArray[Any]  # 1-d and contiguous


class Folder:
    """Folds segments of one collective of `size` ranks."""

    def __init__(self, op: Op, dtype: np.dtype[Any], size: int, own_position: int) -> None:
        self._op = op
        self._size = size
        self._wide = dtype_name(dtype) in HALVES
        self._dtype = np.dtype(np.float32) if self._wide else dtype
        # Until the own contribution is folded, `out` may still hold it.
        self._out_is_free_from = max(own_position, 1)
        self._scratch: Flat = np.empty(0, self._dtype)

    def fold(self, contributions: Iterable[Flat], out: Flat) -> None:
        """Fold one contribution of each rank, given in rank order, into `out`.

        `out` may be the memory of the own contribution. Contributions are consumed one by one, so that each can be
        read from the network when it is needed and dropped after.
        """
        scratch = self._scratch_for(len(out))
        running: Flat | None = None
        for position, part in enumerate(contributions):
            if running is None:
                running = part
                continue
            into = out if position >= self._out_is_free_from and not self._wide else scratch
            self._op.ufunc(self._widened(running), self._widened(part), out=into)
            running = into
        assert running is not None
        if self._op is Op.Average:
            running = np.divide(self._widened(running), self._size, out=scratch if self._wide else out)
        if running is not out:
            out[...] = running

    def _widened(self, part: Flat) -> Flat:
        return part.astype(np.float32) if self._wide and part.dtype != self._dtype else part

    def _scratch_for(self, length: int) -> Flat:
        if len(self._scratch) < length:
            self._scratch = np.empty(length, self._dtype)
        return self._scratch[:length]
