"""Copies of values before an update changes them, so that a failed update can be undone bit for bit.

A rank that has ended update k may have to return to k - 1 if another one failed in the last exchange of k. It need not
once all others have ended k, which it knows when their gradients for k + 1 have arrived. So one copy of each bucket is
enough, made between that moment and the bucket's next change; buckets that may change earlier have two.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ringtrain._core.kernels.update import Kept
from ringtrain._core.process_groups.group import Flat
from ringtrain.errors import ConfigurationError, RingtrainError


@dataclass
class _UndoCopy:
    """Copy of the live arrays as they were after update `number` (-1: the copy is invalid).

    Only the first `count` elements were copied, because the update after `number` changed no others.
    """

    arrays: dict[str, Flat]
    count: Flat
    number: int = -1


class UpdateHistory:
    """Arrays of equal length that updates change in place (`live`), and copies from before the last changes.

    `generations`: number of changes that can be undone.
    """

    def __init__(self, live: Mapping[str, Flat], generations: int) -> None:
        self._live = dict(live)
        self._copies = [
            _UndoCopy({name: np.empty_like(values) for name, values in live.items()}, np.zeros(1, np.uint64))
            for _ in range(generations)
        ]
        self.changed_by = -1  # last update that began to change them; -1: none can be undone

    def keep(self, number: int) -> None:
        """Copy the arrays before update `number` changes them."""
        copy = self._oldest()
        for name, kept in copy.arrays.items():
            np.copyto(kept, self._live[name])
            copy.count[0] = len(kept)
        copy.number, self.changed_by = number - 1, number

    def room(self, number: int) -> Kept:
        """Return buffers into which update `number` itself copies the values before it changes them."""
        copy = self._oldest()
        copy.number, self.changed_by = number - 1, number
        return Kept(tuple(copy.arrays.values()), copy.count)

    def forget(self) -> None:
        """Discard all copies, because the arrays were changed by other code than an update."""
        for copy in self._copies:
            copy.number = -1
        self.changed_by = -1

    def restore(self, to: int) -> bool:
        """Restore the arrays after update `to`. Return whether a later update had begun to change them."""
        if self.changed_by <= to:
            return False
        found = next((copy for copy in self._copies if copy.number == to), None)
        if found is None:
            numbers = [copy.number for copy in self._copies]
            raise RingtrainError(f"the values after update {to} were not copied; copies exist of updates {numbers}")
        changed = slice(0, int(found.count[0]))
        for name, copy in found.arrays.items():
            np.copyto(self._live[name][changed], copy[changed])
        self.changed_by = to
        return True

    def _oldest(self) -> _UndoCopy:
        """Return the oldest copy, to be overwritten. It is marked as invalid in case the update fails."""
        oldest = min(self._copies, key=lambda copy: copy.number)
        oldest.number, oldest.count[0] = -1, 0
        return oldest


class OptimizerUndo:
    """Histories of all buckets: of the arrays that this rank updates (`own`) and of compression errors (`lost`)."""

    def __init__(self, own: Iterable[UpdateHistory], lost: Mapping[int, UpdateHistory]) -> None:
        self._own = tuple(own)
        self._lost = dict(lost)
        self._first = 0

    def forget(self) -> None:
        """Discard all copies, because the arrays were changed by other code than an update."""
        for history in (*self._own, *self._lost.values()):
            history.forget()

    def settle_at(self, updates: int) -> None:
        """Refuse to return to updates before `updates`, because other code has changed the weights since.

        Rounding by an update in progress can still be undone.
        """
        self._first = updates

    def keep(self, bucket: int, number: int) -> None:
        """Copy the arrays of `bucket`. Call it right before update `number` changes them."""
        self._own[bucket].keep(number)

    def room(self, bucket: int, number: int) -> Kept:
        """Return buffers into which code copies the arrays of `bucket` before update `number` changes them."""
        return self._own[bucket].room(number)

    def keep_lost(self, bucket: int, number: int) -> None:
        """Copy the compression errors of `bucket`. Call it right before update `number` rounds its gradients."""
        self._lost[bucket].keep(number)

    def restore(self, to: int) -> set[int]:
        """Restore the arrays after update `to`. Return the buckets that a later update had begun to change."""
        if to < self._first:
            raise ConfigurationError(
                f"rollback: to={to}; expected {self._first} or more, because weights and state were "
                f"loaded or received in this world after update {self._first}"
            )
        for lost in self._lost.values():
            lost.restore(to)
        return {index for index, own in enumerate(self._own) if own.restore(to)}
