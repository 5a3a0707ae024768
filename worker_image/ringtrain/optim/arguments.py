"""Checks of the arguments of `HostOptimizer`."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringtrain._core.process_groups.group import Flat
from ringtrain.errors import ConfigurationError, kind_of
from ringtrain.optim.rules import Rule, check_rule
from ringtrain.optim.schedules import Schedule

Params = Mapping[str, Flat] | Iterable[tuple[str, Flat]]

SUPPORTED = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class OptimizerSettings:
    """Settings that determine how gradients become one update.

    `accumulate`: micro-steps whose mean is one update's gradient. `check_finite`: whether NaN and infinity are refused.
    `update_during_backward`: whether weights are updated as soon as gradients are reduced; otherwise the update waits
    for `step()`.
    """

    accumulate: int
    clip_norm: float | None
    schedule: Schedule
    check_finite: bool
    update_during_backward: bool = False


def parameters_as_arrays(params: Params) -> dict[str, Flat]:
    """Return `params` as arrays by name in native byte order, the byte order of weights and gradients."""
    pairs = _parameter_pairs(params)
    if pairs is None:
        raise ConfigurationError(
            f"params is {kind_of(params)}; expected arrays by name, as {{'w': array}}; a PyTorch model is trained "
            "by ringtrain.torch.HostOptimizer"
        )
    held = ((name, without_mask(f'parameter "{name}"', array)) for name, array in pairs)
    arrays = {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in held}
    if len(arrays) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ConfigurationError(f"parameters are registered twice: {twice}; give each a unique name")
    return arrays


def without_mask(what: str, values: ArrayLike) -> NDArray[Any]:
    """Return `values` as an array. Raises ConfigurationError for a masked array, whose mask would be ignored."""
    if isinstance(values, np.ma.MaskedArray):
        raise ConfigurationError(f"{what} is a masked array; expected one without a mask, as filled() gives")
    return np.asarray(values)


def check_arguments(
    arrays: Mapping[str, Flat], local: Collection[str], bucket_bytes: int, settings: OptimizerSettings
) -> None:
    if not arrays:
        raise ConfigurationError("HostOptimizer: params is empty; pass the model's arrays by name")
    for name, array in arrays.items():
        if array.dtype.name not in SUPPORTED:
            raise ConfigurationError(
                f'parameter "{name}" is {array.dtype}; expected one of {", ".join(SUPPORTED)}: convert it, '
                f"or exclude it from the optimizer"
            )
    unknown = sorted(set(local) - set(arrays))
    if unknown:
        raise ConfigurationError(
            f"local has the names {unknown}, which are not parameters; expected some of {sorted(arrays)}"
        )
    if bucket_bytes < 1:
        raise ConfigurationError(f"bucket_bytes is {bucket_bytes}; expected at least 1")
    check_passes(settings.accumulate, "accumulate")
    norm = settings.clip_norm
    if norm is not None and not norm > 0:
        raise ConfigurationError(f"clip_norm is {norm}; expected a number above 0, or None for no clipping")


def check_passes(passes: int, what: str) -> None:
    if passes < 1:
        raise ConfigurationError(f"{what} is {passes}; expected at least 1")


def check_redundancy(redundancy: int, elastic: bool, sharded: bool) -> None:
    """Raise ConfigurationError if `redundancy` (replicas of each shard) is invalid.

    More than one replica needs `elastic` and `sharded`.
    """
    if type(redundancy) is not int or redundancy < 1:
        raise ConfigurationError(
            f"redundancy is {redundancy!r}; expected a whole number of replicas of each shard, at least 1"
        )
    if redundancy > 1 and not (elastic and sharded):
        raise ConfigurationError(
            f"redundancy is {redundancy} with elastic={elastic}, sharded={sharded}; expected elastic=True and "
            "sharded=True: only then shards have replicas"
        )


def grouped_rules(
    rule: Any, groups: Sequence[tuple[Any, Collection[str]]], names: Sequence[str]
) -> tuple[tuple[Rule, ...], dict[str, int]]:
    """Return all rules, `rule` first, then those of `groups`, and for each parameter the index of its rule.

    Raises ConfigurationError.
    """
    check_rule(rule)
    group_of = dict.fromkeys(names, 0)
    for index, (own, members) in enumerate(groups, start=1):
        check_rule(own)
        if type(own) is not type(rule):
            raise ConfigurationError(f"groups[{index - 1}] has {own}, but rule is {rule}; expected rules of one kind")
        if unknown := sorted(set(members) - set(names)):
            raise ConfigurationError(
                f"groups[{index - 1}] names {unknown}, which are not parameters; registered are {sorted(names)}"
            )
        if twice := sorted(name for name in members if group_of[name]):
            raise ConfigurationError(f"groups: {twice} are in two groups; put each parameter in at most one group")
        group_of |= dict.fromkeys(members, index)
    return (rule, *(own for own, _ in groups)), group_of


def comparable_text(value: Any) -> str:
    """Return a text that ranks can compare: the repr; for a function its name, because its repr has an address."""
    return value.__qualname__ if hasattr(value, "__qualname__") else repr(value)


def _parameter_pairs(params: Any) -> list[tuple[str, Any]] | None:
    """Return `params` as pairs of name and array; None if they have another type."""
    if isinstance(params, Mapping):
        return list(params.items())
    try:
        pairs = list(params)
    except TypeError:
        return None
    return pairs if all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs) else None
