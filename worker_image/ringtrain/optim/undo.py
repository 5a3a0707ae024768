"""Copies of what an update changes on this rank, so that an update that failed can be undone to the bit.

A rank that has ended update k may have to go back to k - 1: another one failed in k's last exchange. It need not
once it knows that all others have ended k, which is when their gradients for k + 1 have come. So one copy of each
bucket is enough, made between that moment and the bucket's next change; buckets that may change earlier have two.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ringtrain._core.kernels.update import Kept
from ringtrain._core.process_groups.group import Flat
from ringtrain.errors import ConfigurationError, RingtrainError


@dataclass
class _UndoCopy:
    """`arrays` from after update `number` (-1: none), of the elements before `count`: others were not changed."""

    arrays: dict[str, Flat]
    count: Flat
    number: int = -1


class UpdateHistory:
    """`live` arrays, equally long, that updates change in place, and copies from before their last changes.

    `generations`: how many changes can be undone.
    """

    def __init__(self, live: Mapping[str, Flat], generations: int) -> None:
        self._live = dict(live)
        self._copies = [
            _UndoCopy({name: np.empty_like(values) for name, values in live.items()}, np.zeros(1, np.uint64))
            for _ in range(generations)
        ]
        self.changed_by = -1  # the last update that began to change them; -1: none that can be undone

    def keep(self, number: int) -> None:
        """Copy what update `number` is about to change."""
        copy = self._oldest()
        for name, kept in copy.arrays.items():
            np.copyto(kept, self._live[name])
            copy.count[0] = len(kept)
        copy.number, self.changed_by = number - 1, number

    def room(self, number: int) -> Kept:
        """Return where update `number` itself puts what it changes."""
        copy = self._oldest()
        copy.number, self.changed_by = number - 1, number
        return Kept(tuple(copy.arrays.values()), copy.count)

    def forget(self) -> None:
        """The arrays were set to something else: no copy is of any use."""
        for copy in self._copies:
            copy.number = -1
        self.changed_by = -1

    def restore(self, to: int) -> bool:
        """Make the arrays those after update `to`. Return whether a later one had begun to change them."""
        if self.changed_by <= to:
            return False
        found = next((copy for copy in self._copies if copy.number == to), None)
        if found is None:
            numbers = [copy.number for copy in self._copies]
            raise RingtrainError(f"there is no copy from after update {to}; copies are of {numbers}")
        changed = slice(0, int(found.count[0]))
        for name, copy in found.arrays.items():
            np.copyto(self._live[name][changed], copy[changed])
        self.changed_by = to
        return True

    def _oldest(self) -> _UndoCopy:
        """The copy that is made anew. What an update that fails here leaves in it is none."""
        oldest = min(self._copies, key=lambda copy: copy.number)
        oldest.number, oldest.count[0] = -1, 0
        return oldest


class OptimizerUndo:
    """The histories of all buckets: of what this rank owns (`own`), and of what compression owes (`lost`)."""

    def __init__(self, own: Iterable[UpdateHistory], lost: Mapping[int, UpdateHistory]) -> None:
        self._own = tuple(own)
        self._lost = dict(lost)
        self._first = 0

    def forget(self) -> None:
        """All arrays were set to something else: no copy is of any use."""
        for history in (*self._own, *self._lost.values()):
            history.forget()

    def settle_at(self, updates: int) -> None:
        """The weights after `updates` were set from outside: refuse to go back to what was before. What the update
        that is under way has rounded since can still be undone."""
        self._first = updates

    def keep(self, bucket: int, number: int) -> None:
        """Call it right before update `number` changes weights and state of `bucket`."""
        self._own[bucket].keep(number)

    def room(self, bucket: int, number: int) -> Kept:
        """In the place of `keep`, where what changes the weights keeps them, then the states, by itself."""
        return self._own[bucket].room(number)

    def keep_lost(self, bucket: int, number: int) -> None:
        """Call it right before update `number` rounds the gradients of `bucket`."""
        self._lost[bucket].keep(number)

    def restore(self, to: int) -> set[int]:
        """Go back to after update `to`. Return the buckets that a later update had begun to change."""
        if to < self._first:
            raise ConfigurationError(
                f"rollback: to is {to}; expected at least {self._first}, where weights and state were loaded or "
                "came into this world"
            )
        for lost in self._lost.values():
            lost.restore(to)
        return {index for index, own in enumerate(self._own) if own.restore(to)}
