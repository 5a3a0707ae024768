"""Fragments: groups of parameters that are synchronized together; the schedule and the exchange of one fragment."""

import contextvars
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ringtrain import timeline
from ringtrain.adapter import Array
from ringtrain.errors import ConfigurationError, counted
from ringtrain.optim import HostOptimizer
from ringtrain.step_time import REDUCTION, mark_background_thread


@dataclass(frozen=True)
class DiLoCoSchedule:
    """Schedule: the inner steps after which each fragment is synchronized.

    Fragment f is synchronized after each inner step t for which t mod `sync_every` is (f + 1) * `sync_every` //
    `fragments`, or 0 for the last one. Its outer weights arrive `overlap_steps` later. `mix`: see `DiLoCo`.
    """

    sync_every: int
    fragments: int
    overlap_steps: int
    mix: float

    def check(self, parameters: int) -> None:
        """Raise ConfigurationError if an argument is out of range. `parameters`: number of parameters of the model."""
        if self.sync_every < 1:
            raise ConfigurationError(f"DiLoCo: sync_every is {self.sync_every}; expected at least 1 inner step")
        most = min(parameters, self.sync_every)
        if not 1 <= self.fragments <= most:
            raise ConfigurationError(
                f"DiLoCo: fragments is {self.fragments}; expected 1 to {most}: at most the number of parameters "
                f"({parameters}) and of steps in sync_every ({self.sync_every})"
            )
        interval = self.sync_every // self.fragments
        if not 0 <= self.overlap_steps < interval:
            raise ConfigurationError(
                f"DiLoCo: overlap_steps is {self.overlap_steps}; expected 0 to {interval - 1}: with {self.fragments} "
                f"fragments and sync_every={self.sync_every} the next synchronization is {counted(interval, 'step')} "
                "later"
            )
        if not 0 <= self.mix <= 1:
            raise ConfigurationError(
                f"DiLoCo: mix is {self.mix}; expected 0 (use the outer weights) to 1 (keep this rank's weights)"
            )

    def due(self, step: int) -> int | None:
        """Return the index of the fragment to synchronize after inner step `step`; None if no fragment is due."""
        place = step % self.sync_every or self.sync_every
        return self._places.index(place) if place in self._places else None

    def steps_left(self, step: int) -> int:
        """Return the number of inner steps from `step` to the next synchronization."""
        return min((place - step - 1) % self.sync_every + 1 for place in self._places)

    @property
    def _places(self) -> list[int]:
        return [(fragment + 1) * self.sync_every // self.fragments for fragment in range(self.fragments)]


class OuterOptimizerStep(Protocol):
    """Interface of the outer optimizer of a fragment, for example `HostOptimizer`."""

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
    """Parameters that are synchronized together, and their outer optimizer.

    `carries`: names whose pseudo-gradient this rank sends. `sent`: inner step of the last synchronization. `samples`:
    number of samples trained on since then. `updates`: number of outer steps whose weights have arrived.
    """

    index: int
    names: tuple[str, ...]
    carries: tuple[str, ...]
    outer: OuterOptimizerStep
    sent: int = 0
    samples: float = 0
    updates: int = 0

    @property
    def host(self) -> HostOptimizer:
        """Return the outer optimizer if it is a `HostOptimizer`, that is, if no site has several ranks."""
        assert isinstance(self.outer, HostOptimizer)
        return self.outer


@dataclass
class FragmentExchange:
    """Exchange that performs the outer step of `fragment` with the pseudo-gradient computed after inner step `step`.

    `work`: function that performs the exchange. `seconds`: duration of `work`. `waited`: part of this duration in which
    training waited for the exchange.
    """

    fragment: DiLoCoFragment
    step: int
    work: Callable[[], None] = lambda: None
    seconds: float = 0.0
    waited: float = 0.0
    _error: BaseException | None = None
    _thread: threading.Thread | None = field(default=None, repr=False)

    def begin(self, overlaps: bool) -> None:
        """Perform the exchange: on a background thread if `overlaps`, otherwise before this call returns."""
        if not overlaps:
            self._run()
            self.waited = self.seconds
            return
        run = contextvars.copy_context().run  # a process may hold several ranks; the context says which one this is
        self._thread = threading.Thread(target=run, args=(self._beside,), name="ringtrain-diloco", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the outer weights are updated. Raises the error if the exchange failed."""
        if self._thread is not None:
            began = time.perf_counter()
            with REDUCTION:
                self._thread.join()
            self.waited += time.perf_counter() - began
        if self._error is not None:
            raise self._error

    def join(self) -> None:
        """Wait until the exchange has ended, with or without an error."""
        if self._thread is not None:
            self._thread.join()

    def _beside(self) -> None:
        mark_background_thread()
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
    """Return `fragments` + 1 indices that cut parameters, in order, into groups of about equal bytes, none empty."""
    ends, bounds = np.cumsum(nbytes), [0]
    for fragment in range(1, fragments):
        nearest = int(np.argmin(np.abs(ends - ends[-1] * fragment / fragments))) + 1
        bounds.append(min(max(nearest, bounds[-1] + 1), len(nbytes) - fragments + fragment))
    return [*bounds, len(nbytes)]
