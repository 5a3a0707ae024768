"""Weights of a DiLoCo under test, whose process ends at a point of its schedule."""

import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# What is come to, for the nth time or with that number, and how many milliseconds later the process ends.
Point = tuple[str, int, float]
SHAPES = {"a": (40, 13), "b": (300,), "c": (7, 31)}


FRAGMENTS = {1: ["abc"], 2: ["a", "bc"], 3: ["a", "b", "c"]}
STEPS, SYNC_EVERY = 14, 6


def due(step: int, fragments: int) -> str:
    """The names that are synchronized after an inner step."""
    groups = FRAGMENTS[fragments]
    for index, names in enumerate(groups):
        if (step - (index + 1) * SYNC_EVERY // len(groups)) % SYNC_EVERY == 0:
            return names
    return "abc" if step == STEPS else ""


def has_weights(result: dict[str, Any], outer: dict[str, Array]) -> bool:
    """Whether a rank has these outer weights, but for rounding."""
    return all(
        np.allclose(result[kind][name], outer[name], rtol=0, atol=1e-9)
        for kind in ("local", "outer")
        for name in SHAPES
    )


class MortalWeights:
    """Arrays, and a process that kills itself when it comes to a point."""

    def __init__(self, point: Point | None) -> None:
        self.arrays = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        self.point, self._counts = point, {"read": 0, "write": 0}

    def read(self, names: Sequence[str]) -> Sequence[Array]:
        self._count("read")
        return [self.arrays[name] for name in names]

    def write(self, name: str, values: Array) -> None:
        self._count("write")
        self.arrays[name][...] = values

    def forget_counts(self) -> None:
        self._counts = dict.fromkeys(self._counts, 0)

    def _count(self, what: str) -> None:
        self._counts[what] += 1
        self.come_to(what, self._counts[what])

    def come_to(self, what: str, number: int) -> None:
        if self.point is not None and self.point[:2] == (what, number):
            if delay_ms := self.point[2]:
                threading.Timer(delay_ms / 1e3, os.kill, (os.getpid(), signal.SIGKILL)).start()
            else:
                os.kill(os.getpid(), signal.SIGKILL)
