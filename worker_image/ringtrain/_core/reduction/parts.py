"""Parts of arrays, as ranks hold, write and read them."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ArrayPart:
    """A rank's part of an array of `shape`: `values` (1-d) are its elements from `start` on, in C order."""

    values: NDArray[Any]
    shape: tuple[int, ...]
    start: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype


@runtime_checkable
class Readable(Protocol):
    """An array that is elsewhere, and of which a part can be read."""

    shape: tuple[int, ...]

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Elements `start:stop`, in C order, 1-d."""


def elements(array: NDArray[Any] | Readable, start: int, stop: int) -> NDArray[Any]:
    """Elements `start:stop` of `array`, in C order; of one that is elsewhere no others are read."""
    if isinstance(array, Readable):
        return array.read(start, stop)
    return array.reshape(-1)[start:stop]
