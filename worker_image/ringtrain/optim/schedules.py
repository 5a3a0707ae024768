"""Learning-rate schedules: the factor on the rule's `lr` at each step, counted from 0.

Any function from step to factor can be used; these are common ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ringtrain.errors import ConfigurationError

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class Constant:
    """The same factor at every step."""

    factor: float = 1.0

    def __call__(self, step: int) -> float:
        return self.factor


@dataclass(frozen=True)
class StepDecay:
    """Multiply by `gamma` at each of `milestones` (steps)."""

    milestones: tuple[int, ...]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", tuple(self.milestones))
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ConfigurationError(f"StepDecay: milestones are {self.milestones}; expected rising steps")

    def __call__(self, step: int) -> float:
        return self.gamma ** sum(step >= milestone for milestone in self.milestones)


@dataclass(frozen=True)
class Cosine:
    """Decrease from 1 to `floor` along half a cosine over `total_steps`, then stay at `floor`.

    Loshchilov & Hutter 2017, without restarts.
    """

    total_steps: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.total_steps < 1:
            raise ConfigurationError(f"Cosine: total_steps is {self.total_steps}; expected at least 1")

    def __call__(self, step: int) -> float:
        progress = min(max(step, 0) / self.total_steps, 1.0)
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Warmup:
    """Increase linearly from `start` to `scale` over `steps`, then follow `scale * after(step - steps)`.

    With `scale=rt.size()` and `start=1.0` this is the gradual warm-up of Goyal et al. 2017: the rule's `lr` is for one
    worker, and k workers end at k times that rate. `start=0.0` begins at zero, as is usual with Adam.
    """

    steps: int
    scale: float = 1.0
    start: float = 1.0
    after: Schedule = Constant()

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ConfigurationError(f"Warmup: steps is {self.steps}; expected 0 or more")

    def __call__(self, step: int) -> float:
        if step >= self.steps:
            return self.scale * self.after(step - self.steps)
        return self.start + (self.scale - self.start) * step / self.steps
