"""Checks of the arguments of `DiLoCo`: weights, inner optimizer, period, and whether they fit the world."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ringtrain.adapter import Array, current_world
from ringtrain.adapter.state import StatefulObject, is_stateful
from ringtrain.errors import ConfigurationError, kind_of


@runtime_checkable
class DiLoCoLocalWeights(Protocol):
    """Interface of the weights that this rank's inner optimizer changes, in host memory or on a device."""

    def read(self, names: Sequence[str]) -> Sequence[Array]:
        """Return the weights `names` as host arrays. The caller reads them before the next inner step."""

    def write(self, name: str, values: Array) -> None:
        """Set the weight `name` in place."""


class ArrayWeights:
    """Weights that are numpy arrays, which the caller trains in place."""

    def __init__(self, params: Mapping[str, Array]) -> None:
        self._params = params

    def read(self, names: Sequence[str]) -> Sequence[Array]:
        return [self._params[name] for name in names]

    def write(self, name: str, values: Array) -> None:
        self._params[name][...] = values


def checked_weights(params: Any, initial: Mapping[str, Array] | None) -> tuple[dict[str, Array], DiLoCoLocalWeights]:
    """Return initial values by name, and the weights to train. Raises ConfigurationError for wrong `params`."""
    if isinstance(params, DiLoCoLocalWeights) and initial is not None:
        return dict(initial), params
    arrays = params if isinstance(params, Mapping) else {}
    wrong = [name for name, one in arrays.items() if not (isinstance(one, np.ndarray) and one.flags.writeable)]
    if not arrays or wrong:
        found = f"params is {kind_of(params)}"
        if wrong:
            found = f'parameter "{wrong[0]}" is {kind_of(arrays[wrong[0]])}'
        raise ConfigurationError(
            f"DiLoCo: {found}; expected at least one writable numpy array, by name; for a PyTorch model use "
            "ringtrain.torch.DiLoCo"
        )
    return dict(arrays), ArrayWeights(arrays)


def checked_inner(inner: Any) -> StatefulObject | None:
    """Return the inner optimizer, or None if it has no state. Raises ConfigurationError if it has no `state_dict()`."""
    if is_stateful(inner):
        return inner
    if inner is None or (isinstance(inner, tuple) and not inner):
        return None
    raise ConfigurationError(
        f"DiLoCo: inner is {kind_of(inner)}; expected an object with state_dict() and load_state_dict(), or () if "
        "the inner optimizer has no state"
    )


def sync_periods(sync_every: int | Sequence[int]) -> list[int]:
    """Return `sync_every` as a list: one period for each site, or a single period for all sites."""
    return list(sync_every) if isinstance(sync_every, Sequence) else [sync_every]


def check_elastic(elastic: bool) -> None:
    """Raise ConfigurationError if the job is elastic but `elastic` is False."""
    if current_world().config.numbers.formation and not elastic:
        raise ConfigurationError(
            "DiLoCo was created in an elastic job without elastic=True; pass elastic=True and add the DiLoCo to the "
            "state of ringtrain.elastic, or run the job without elastic"
        )
