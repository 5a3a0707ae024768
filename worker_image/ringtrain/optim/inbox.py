"""Input of gradients of an update: check them, copy them into their bucket, and detect complete buckets."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringtrain.errors import ConfigurationError, counted, some_of
from ringtrain.optim.arenas import ParameterArenas
from ringtrain.optim.arguments import SUPPORTED, OptimizerSettings, without_mask
from ringtrain.optim.layout import HALF_TYPES, Layout, ParamSpec
from ringtrain.optim.spans import ABSENT, parameter_beginnings


class GradientInbox:
    """Collector of the gradients of one update, which any thread submits in any order.

    Over `accumulate` micro-steps a gradient is summed in the order of the micro-steps. Half-precision gradients are
    summed in float32, and their mean is rounded once.
    """

    def __init__(self, layout: Layout, arenas: ParameterArenas, rank: int, settings: OptimizerSettings) -> None:
        self._layout = layout
        self._arenas = arenas
        self._me = f"rank {rank}"
        self._settings = settings
        self._wide: dict[str, NDArray[np.float32]] = {}
        if settings.accumulate > 1:
            halves = (spec for spec in layout.specs if spec.dtype.name in HALF_TYPES)
            self._wide = {spec.name: np.zeros(spec.size, np.float32) for spec in halves}
        self._changed = threading.Condition()
        self._beginnings = parameter_beginnings(layout)
        self._micro_step = 0
        self._arrived: set[str] = set()
        self._present: set[str] = set()
        self._outstanding: list[int] = []
        self.completed_s = [0.0] * len(layout.buckets)  # time at which each bucket was complete, by time.perf_counter
        self._cancelled = False
        self.begin_update()

    def begin_update(self) -> None:
        """Reset for the next update, also after an update was cancelled."""
        with self._changed:
            self._cancelled = False
            self._micro_step = 0
            self._arrived.clear()
            self._present.clear()
            self._outstanding = [len(bucket.locations) for bucket in self._layout.buckets]

    @property
    def empty(self) -> bool:
        """Return whether nothing has been submitted for the next update."""
        return self._micro_step == 0 and not self._arrived

    def room(self, name: str) -> NDArray[Any]:
        """Return the memory from which the gradient of `name` is reduced, in the shape of its parameter.

        Raises ConfigurationError for a gradient that is unknown or already submitted, and if gradients are summed over
        micro-steps, because the memory contains the sum.
        """
        bucket, location = self._find(name)
        if self._settings.accumulate > 1:
            raise ConfigurationError(
                f'{self._me}: gradient("{name}") cannot be used with '
                f"accumulate={self._settings.accumulate}, because its memory contains the sum of the "
                "micro-steps; submit your own arrays"
            )
        if name in self._arrived:
            raise ConfigurationError(
                f'{self._me}: gradient("{name}") was called after its submit() in this step, when '
                "other ranks read its memory; call gradient() before submit()"
            )
        room: NDArray[Any] = self._arenas.gradients(bucket)[location.start : location.stop]
        return room.reshape(location.spec.shape)

    @property
    def micro_steps(self) -> int:
        """Return the number of micro-steps of the update, including the current one."""
        return self._micro_step + 1

    def is_absent(self, name: str) -> bool:
        """Return whether this rank has no gradient of `name` in this update."""
        return name not in self._present

    def put(self, name: str, gradient: ArrayLike | None, weight: float = 1.0) -> bool:
        """Store `weight` times the gradient of `name`. `gradient`: None if this rank has none.

        Return True for the first gradient of an update's last micro-step. Raises ConfigurationError for a gradient that
        is unknown, already submitted, or differs from its parameter in shape or dtype, and for a weight that is
        negative or not finite.
        """
        bucket, location = self._find(name)
        if not 0 <= weight < float("inf"):
            raise ConfigurationError(
                f'{self._me}: the weight of gradient "{name}" is {weight}; expected a number of at least 0, '
                "such as Batch.weight"
            )
        target = self._arenas.gradients(bucket)[location.start : location.stop]
        if gradient is None:
            return self.put_with(name, lambda: self._store(name, target, None), present=False)
        array = without_mask(f'{self._me}: gradient "{name}"', gradient)
        values = _weighted_gradient(self._checked(location.spec, array), weight)
        return self.put_with(name, lambda: self._store(name, target, values))

    def put_with(self, name: str, store: Callable[[], None], present: bool = True) -> bool:
        """Register the gradient of `name`; `store` writes it into the memory from which it is reduced.

        `present`: whether this rank has a gradient. If not, `store` records that. Returns True for the first gradient
        of an update's last micro-step, like `put`.
        """
        bucket, _ = self._find(name)
        with self._changed:
            if name in self._arrived:
                raise ConfigurationError(
                    f'{self._me}: gradient "{name}" was submitted twice in one step; submit each gradient once '
                    f"per backward pass and call step() after it"
                )
            first_of_last = self.is_last_micro_step and not self._arrived
            self._arrived.add(name)
        store()
        if present:
            self._present.add(name)
        with self._changed:
            if self.is_last_micro_step:
                self._outstanding[bucket.index] -= 1
                if not self._outstanding[bucket.index]:
                    self.completed_s[bucket.index] = time.perf_counter()
                    self._changed.notify_all()
        return first_of_last

    def check_complete(self) -> None:
        """Raise ConfigurationError with the names of the missing gradients of this micro-step."""
        with self._changed:
            missing = [spec.name for spec in self._layout.specs if spec.name not in self._arrived]
            if missing:
                raise ConfigurationError(
                    f"{self._me}: step() was called with {len(missing)} of "
                    f"{counted(len(self._layout.specs), 'gradient')} missing: {_listed_inbox_parameters(missing)}; "
                    f"submit a gradient for every parameter (None for one that this batch does not use), or exclude "
                    "the parameter from the optimizer"
                )

    def end_micro_step(self) -> bool:
        """End a micro-step. Return True if it was the last micro-step of the update.

        Raises ConfigurationError if gradients are missing.
        """
        self.check_complete()
        with self._changed:
            if self.is_last_micro_step:
                return True
            self._micro_step += 1
            self._arrived.clear()
            return False

    def is_complete(self, index: int) -> bool:
        return self._outstanding[index] == 0

    def wait_complete(self, index: int) -> bool:
        """Wait until all gradients of bucket `index` were submitted. Return False if the update was cancelled."""
        with self._changed:
            self._changed.wait_for(lambda: self._cancelled or self._outstanding[index] == 0)
            return not self._cancelled

    def cancel(self) -> None:
        """Cancel the update: `wait_complete` returns False in all threads."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()

    @property
    def is_last_micro_step(self) -> bool:
        """Return whether the current micro-step is the last one before the weights change."""
        return self._micro_step == self._settings.accumulate - 1

    def _find(self, name: str) -> Any:
        found = self._layout.locations.get(name)
        if found is None:
            known = _listed_inbox_parameters([spec.name for spec in self._layout.specs])
            raise ConfigurationError(
                f'{self._me}: gradient "{name}" belongs to no parameter; expected one of {known}; '
                "submit gradients under the names that were passed to HostOptimizer"
            )
        return found

    def _checked(self, spec: ParamSpec, gradient: NDArray[Any]) -> NDArray[Any]:
        if gradient.shape != spec.shape:
            raise ConfigurationError(
                f'{self._me}: gradient "{spec.name}" has shape {gradient.shape}, but its parameter '
                f"has shape {spec.shape}; submit the gradient in the parameter's shape"
            )
        if gradient.dtype != spec.dtype:
            other = f", or register the parameter as {gradient.dtype}" if gradient.dtype.name in SUPPORTED else ""
            raise ConfigurationError(
                f'{self._me}: gradient "{spec.name}" is {gradient.dtype}, but its parameter is '
                f"{spec.dtype}; convert it with np.asarray(gradient, {spec.dtype.name!r}){other}"
            )
        if self._settings.check_finite and not np.isfinite(gradient).all():
            bad = np.flatnonzero(~np.isfinite(gradient))
            raise ConfigurationError(
                f'{self._me}: gradient "{spec.name}" has {bad.size} of {counted(gradient.size, "value")} that are not '
                f"finite, the first at flat index {bad[0]} ({gradient.reshape(-1)[bad[0]]}); lower the learning "
                f"rate, clip, or look for a division by zero in the loss"
            )
        return gradient

    def _store(self, name: str, target: NDArray[Any], values: NDArray[Any] | None) -> None:
        summed = self._wide.get(name, target)
        if values is None:
            if self._micro_step == 0:
                summed[...] = ABSENT
        else:
            into = summed.reshape(values.shape)
            if self._micro_step == 0:
                into[...] = values  # numpy copies nothing if both are the same memory, from `room`
            else:
                np.add(into, values, out=into)
        if self.is_last_micro_step:
            self._end(name, target, values is not None or name in self._present)

    def _end(self, name: str, target: NDArray[Any], present: bool) -> None:
        """Complete the gradient `name` after the last micro-step: average a float32 sum, and mark it if `present`."""
        if (summed := self._wide.get(name)) is not None:
            target[:] = summed * np.float32(1.0 / self.micro_steps)
        if present:
            self.mark(name, target)

    def mark(self, name: str, values: NDArray[Any]) -> None:
        """Mark the gradient `values` of `name` as present: replace -0, which would mean that it is absent, by 0."""
        for begin in self._beginnings[name]:
            if values[begin] == 0:
                values[begin] = 0.0  # not -0

    def flush(self) -> bool:
        """End the update after the micro-steps submitted up to now. Return False if there were none."""
        with self._changed:
            if self._arrived:
                raise ConfigurationError(
                    f"{self._me}: flush() was called in the middle of a backward pass; call flush() between passes"
                )
            if not self._micro_step:
                return False
            self._micro_step -= 1
            for spec in self._layout.specs:
                bucket, location = self._layout.locations[spec.name]
                target = self._arenas.gradients(bucket)[location.start : location.stop]
                self._end(spec.name, target, spec.name in self._present)
            self._arrived = {spec.name for spec in self._layout.specs}
            self._outstanding = [0] * len(self._outstanding)
            self.completed_s = [time.perf_counter()] * len(self._outstanding)
            self._changed.notify_all()
        return True


def _weighted_gradient(values: NDArray[Any], weight: float) -> NDArray[Any]:
    """Return `weight` times `values`. A half-precision product is rounded only once, when it is stored."""
    if weight == 1.0:
        return values
    wide = values if values.dtype.itemsize >= 4 else values.astype(np.float32)
    return wide * wide.dtype.type(weight)


def _listed_inbox_parameters(names: list[str]) -> str:
    return some_of([f'"{name}"' for name in names])
