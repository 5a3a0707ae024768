"""Copies of what an update changes on this rank, so that an update that failed can be undone to the bit.

A rank that has ended update k may have to go back to k - 1: another one failed in k's last exchange. It need not
once it knows that all others have ended k, which is when their gradients for k + 1 have come. So one copy of each
bucket is enough, made between that moment and the bucket's next change; buckets that may change earlier have two.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from ringtrain.errors import RingtrainError
from ringtrain.process_groups.group import Flat


class History:
    """`live` arrays that updates change in place, and copies of them from before their last changes.

    `generations`: how many changes can be undone.
    """

    def __init__(self, live: Mapping[str, Flat], generations: int) -> None:
        self._live = dict(live)
        self._copies = [{name: np.empty_like(values) for name, values in live.items()} for _ in range(generations)]
        self._numbers = [-1] * generations  # the update after which each copy was made; -1: none
        self.changed_by = -1  # the last update that began to change them; -1: none that can be undone

    def keep(self, number: int) -> None:
        """Copy what update `number` is about to change."""
        oldest = self._numbers.index(min(self._numbers))
        self._numbers[oldest] = -1  # what an update that fails here leaves is no copy
        for name, copy in self._copies[oldest].items():
            np.copyto(copy, self._live[name])
        self._numbers[oldest] = number - 1
        self.changed_by = number

    def restore(self, to: int) -> bool:
        """Make the arrays those after update `to`. Return whether that changed them."""
        if self.changed_by <= to:
            return False
        if to not in self._numbers:
            raise RingtrainError(f"there is no copy from after update {to}; copies are of {self._numbers}")
        for name, copy in self._copies[self._numbers.index(to)].items():
            np.copyto(self._live[name], copy)
        self.changed_by = to
        return True


class Undo:
    """The histories of all buckets: of what this rank owns (`own`), and of what compression owes (`lost`)."""

    def __init__(self, own: Iterable[History], lost: Mapping[int, History]) -> None:
        self._own = tuple(own)
        self._lost = dict(lost)

    def keep(self, bucket: int, number: int) -> None:
        """Call it right before update `number` changes weights and state of `bucket`."""
        self._own[bucket].keep(number)

    def keep_lost(self, bucket: int, number: int) -> None:
        """Call it right before update `number` rounds the gradients of `bucket`."""
        self._lost[bucket].keep(number)

    def restore(self, to: int) -> set[int]:
        """Go back to after update `to`. Return the buckets that a later update had begun to change."""
        for lost in self._lost.values():
            lost.restore(to)
        return {index for index, own in enumerate(self._own) if own.restore(to)}
