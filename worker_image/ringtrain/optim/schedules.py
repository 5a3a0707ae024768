"""Learning-rate schedules: functions of the step, from 0, that return a factor for the rule's `lr`.

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
    """Schedule with the same factor at every step."""

    factor: float = 1.0

    def __call__(self, step: int) -> float:
        return self.factor


@dataclass(frozen=True)
class StepDecay:
    """Schedule that multiplies the factor by `gamma` at each step in `milestones`."""

    milestones: tuple[int, ...]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", tuple(self.milestones))
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ConfigurationError(f"StepDecay: milestones are {self.milestones}; expected increasing steps")

    def __call__(self, step: int) -> float:
        return self.gamma ** sum(step >= milestone for milestone in self.milestones)


@dataclass(frozen=True)
class Cosine:
    """Schedule that decreases from 1 to `floor` along half a cosine over `total_steps`, then stays at `floor`.

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
    """Schedule that rises linearly from `start` to `scale` over `steps`, then is `scale * after(step - steps)`.

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
