"""Values that a stream yields: one batch or one item, with the arrays that a data worker has loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtrain.data import Batch
from ringtrain.errors import DataError, counted


@dataclass(frozen=True)
class LoadedBatch(Batch):
    """A `Batch` (indices, mask, weight, consumed) with the arrays that the loader returned for its indices:
    `batch["image"]`.

    `arrays`: writable arrays by name, which do not share memory with other batches.
    """

    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return the array called `name`."""
        return self.arrays[name]

    @property
    def micro_batches(self) -> tuple[LoadedBatch, ...]:
        """Parts of `Batch.micro_batches`, each with its samples' entries of every array. Raises DataError for an array
        without one entry per sample."""
        if self.passes == 1:
            return (self,)
        own = np.array_split(np.flatnonzero(self.mask), self.passes)
        parts = zip(super().micro_batches, own, strict=True)
        return tuple(self._with(part, at if at.size else np.zeros(1, np.int64)) for part, at in parts)

    def _with(self, part: Batch, at: NDArray[np.int64]) -> LoadedBatch:
        for name, array in self.arrays.items():
            if array.ndim == 0 or len(array) != self.indices.size:
                raise DataError(
                    f"micro_batches: array {name!r} is of shape {array.shape} for "
                    f"{counted(self.indices.size, 'sample')}; expected one entry for each sample"
                )
        return loaded(part, {name: array[at] for name, array in self.arrays.items()})


def loaded(batch: Batch, arrays: Mapping[str, NDArray[Any]]) -> LoadedBatch:
    """Return `batch` with the loaded `arrays`."""
    return LoadedBatch(batch.indices, batch.mask, batch.weight, batch.consumed, batch.passes, arrays)


@dataclass(frozen=True)
class SplitBatch:
    """One item of a split, which is a file that is read in order. `offset`: position in the file after the item."""

    uri: str
    offset: int
    arrays: Mapping[str, NDArray[Any]]

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return the array called `name`."""
        return self.arrays[name]
