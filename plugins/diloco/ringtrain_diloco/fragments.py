"""What DiLoCo synchronizes together, when it does, and one such exchange."""

import contextvars
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ringtrain import timeline
from ringtrain.adapter import Array
from ringtrain.errors import ConfigurationError
from ringtrain.optim import HostOptimizer
from ringtrain.step_time import REDUCTION, beside_training


@dataclass(frozen=True)
class DiLoCoSchedule:
    """When fragments are synchronized: fragment f after each inner step t with t mod `sync_every` = (f + 1) *
    `sync_every` // `fragments`, or 0; its outer weights arrive `overlap_steps` later. `mix`: see `DiLoCo`."""

    sync_every: int
    fragments: int
    overlap_steps: int
    mix: float

    def check(self, parameters: int) -> None:
        """Raise ConfigurationError that names the argument that is wrong."""
        if self.sync_every < 1:
            raise ConfigurationError(f"DiLoCo: sync_every is {self.sync_every}; expected at least 1 inner step")
        most = min(parameters, self.sync_every)
        if not 1 <= self.fragments <= most:
            raise ConfigurationError(
                f"DiLoCo: fragments is {self.fragments}; expected 1 to {most}: no more than there are parameters "
                f"({parameters}) and steps in sync_every ({self.sync_every})"
            )
        interval = self.sync_every // self.fragments
        if not 0 <= self.overlap_steps < interval:
            raise ConfigurationError(
                f"DiLoCo: overlap_steps is {self.overlap_steps}; expected 0 to {interval - 1}: the next of "
                f"{self.fragments} fragments is due {interval} steps later (sync_every={self.sync_every})"
            )
        if not 0 <= self.mix <= 1:
            raise ConfigurationError(
                f"DiLoCo: mix is {self.mix}; expected 0 (take the outer weights) to 1 (keep this rank's own)"
            )

    def due(self, step: int) -> int | None:
        """The fragment that is synchronized after inner step `step`, if one is."""
        place = step % self.sync_every or self.sync_every
        return self._places.index(place) if place in self._places else None

    def steps_left(self, step: int) -> int:
        """How many inner steps after `step` the next fragment is due."""
        return min((place - step - 1) % self.sync_every + 1 for place in self._places)

    @property
    def _places(self) -> list[int]:
        return [(fragment + 1) * self.sync_every // self.fragments for fragment in range(self.fragments)]


class OuterOptimizerStep(Protocol):
    """An outer optimizer of some parameters, as `HostOptimizer` is one."""

    @property
    def weights(self) -> Mapping[str, Array]: ...

    @property
    def gradient_norm(self) -> float | None: ...

    @property
    def state_bytes(self) -> int: ...

    def gradient(self, name: str) -> Array: ...

    def submit(self, name: str, gradient: Array) -> None: ...

    def step(self) -> Any: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


@dataclass
class DiLoCoFragment:
    """Parameters that are synchronized together. `carries`: those whose pseudo-gradient this rank sends. `sent`:
    the inner step of the last one; `samples`: how many were trained on since. `updates`: outer steps whose weights
    have arrived."""

    index: int
    names: tuple[str, ...]
    carries: tuple[str, ...]
    outer: OuterOptimizerStep
    sent: int = 0
    samples: float = 0
    updates: int = 0

    @property
    def host(self) -> HostOptimizer:
        """The outer optimizer of ranks without sites."""
        assert isinstance(self.outer, HostOptimizer)
        return self.outer


@dataclass
class FragmentExchange:
    """The outer step of `fragment` from inner step `step` on: `work`, on a thread of its own if it may overlap."""

    fragment: DiLoCoFragment
    step: int
    work: Callable[[], None] = lambda: None
    seconds: float = 0.0
    waited: float = 0.0
    _error: BaseException | None = None
    _thread: threading.Thread | None = field(default=None, repr=False)

    def begin(self, overlaps: bool) -> None:
        if not overlaps:
            self._run()
            self.waited = self.seconds
            return
        run = contextvars.copy_context().run  # where a process holds several ranks: which one this is
        self._thread = threading.Thread(target=run, args=(self._beside,), name="ringtrain-diloco", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when the outer weights are new. Raises what made that fail."""
        if self._thread is not None:
            began = time.perf_counter()
            with REDUCTION:
                self._thread.join()
            self.waited += time.perf_counter() - began
        if self._error is not None:
            raise self._error

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _beside(self) -> None:
        beside_training()
        self._run()

    def _run(self) -> None:
        began, began_ns = time.perf_counter(), time.perf_counter_ns()
        try:
            with REDUCTION:
                self.work()
        except BaseException as error:
            self._error = error
        self.seconds = time.perf_counter() - began
        timeline.record_since(began_ns, f"synchronize fragment {self.fragment.index}", "exchange")


def fragment_bounds(nbytes: Sequence[int], fragments: int) -> list[int]:
    """Cut parameters of so many bytes, in their order, into `fragments` groups of about as many bytes, none of
    them empty: `fragments` + 1 indices."""
    ends, bounds = np.cumsum(nbytes), [0]
    for fragment in range(1, fragments):
        nearest = int(np.argmin(np.abs(ends - ends[-1] * fragment / fragments))) + 1
        bounds.append(min(max(nearest, bounds[-1] + 1), len(nbytes) - fragments + fragment))
    return [*bounds, len(nbytes)]
