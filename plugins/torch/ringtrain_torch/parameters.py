"""Parameters of an optimizer: names, groups defined by the user, and loading of state in place."""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch

from ringtrain.common.util import split_list
from ringtrain.errors import ConfigurationError
from ringtrain_torch.buckets import Param


def named_or_numbered(
    named_parameters: Iterable[tuple[str, Param]] | None, optimizer: torch.optim.Optimizer
) -> dict[Param, str]:
    """Return the name of each parameter. Raises ConfigurationError if names are missing or not unique."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if named_parameters is None:
        return {param: f"gradient.noname.{index}" for index, param in enumerate(params)}
    named = list(named_parameters)
    if any(not isinstance(entry, tuple) for entry in named):
        raise ConfigurationError(
            "named_parameters: expected (name, parameter) pairs, as model.named_parameters() gives"
        )
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"named_parameters: {twice} name more than one parameter; expected unique names")
    by_param = {param: f"gradient.{name}" for name, param in named}
    missing = [index for index, param in enumerate(params) if param not in by_param]
    if missing:
        raise ConfigurationError(
            f"named_parameters: parameters {missing} of the optimizer (by position) have no name; pass all, as "
            "model.named_parameters() gives"
        )
    return {param: by_param[param] for param in params}


def added_to_param_groups(names: Collection[Param], optimizer: torch.optim.Optimizer) -> dict[Param, str]:
    """Return a name, a running number, for each parameter of the optimizer that is not in `names`."""
    new = [param for group in optimizer.param_groups for param in group["params"] if param not in names]
    return {param: f"gradient.noname.{index}" for index, param in enumerate(new, start=len(names))}


def grouped(groups: Any, params: Sequence[Param]) -> list[list[Param]]:
    """Return the groups of parameters that `groups` describes: a number of groups, or lists of parameters."""
    if groups is None or groups == 0:
        return []
    if isinstance(groups, int) and groups > 0:
        return [group for group in split_list(list(params), groups) if group]
    if isinstance(groups, list) and all(isinstance(group, list) for group in groups):
        flat = [param for group in groups for param in group]
        if len(set(flat)) != len(flat):
            raise ConfigurationError("groups: a parameter is in two groups; put each parameter in at most one group")
        return [group for group in groups if group]
    raise ConfigurationError(f"groups is {groups!r}; expected a number, 0 or more, or a list of lists of parameters")


@contextlib.contextmanager
def in_place(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Load state into existing objects within this context: an optimizer shares them with the wrapped one and with
    schedules."""
    groups, state = optimizer.param_groups, optimizer.state
    yield
    loaded_groups, loaded_state = [dict(group) for group in optimizer.param_groups], dict(optimizer.state)
    for own, loaded in zip(groups, loaded_groups, strict=True):
        own.clear()
        own.update(loaded)
    dict.clear(state)  # a HostOptimizer's own `clear` refuses this
    dict.update(state, loaded_state)
    optimizer.param_groups, optimizer.state = groups, state
