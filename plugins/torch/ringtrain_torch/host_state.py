"""Conversion between the state of a host optimizer and the format of torch's optimizers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import numpy as np
import torch

from ringtrain.errors import ConfigurationError, counted
from ringtrain.optim import HostOptimizer
from ringtrain.optim.slots import FEEDBACK, MASTER, MISSED, WEIGHTS
from ringtrain_torch.bridge import real_tensor, tensor_like_param, to_arrays, to_tensor
from ringtrain_torch.host_rules import SLOTS, TorchGroupRules, TorchRules
from ringtrain_torch.state import map_tensor_leaves

OWN: Final = "ringtrain"
_TORCH_NAMES: Final = {ours: torchs for torchs, ours in SLOTS.items()}


@dataclass(frozen=True)
class GatheredTorchState:
    """Gathered state of all parameters. `by_param`: entries of torch's optimizer. `own`: entries that only the host
    optimizer has. `missed`: for each name, the number of updates without a gradient."""

    by_param: dict[torch.Tensor, dict[str, Any]]
    own: dict[str, Any]
    missed: dict[str, int]


@dataclass(frozen=True)
class ParameterState:
    """State of one parameter. `entry`: entry of torch's optimizer. `steps`: number of updates with a gradient."""

    entry: Mapping[str, Any]
    steps: int


@dataclass(frozen=True)
class ParameterStates:
    """State of each parameter after `updates` updates."""

    states: Mapping[Any, ParameterState]
    updates: int


@dataclass(frozen=True)
class TorchHostState:
    """Converter between the state of `host`, a host optimizer, and the format of torch's optimizers."""

    _host: HostOptimizer
    _params: Mapping[str, Any]
    _rules: TorchGroupRules
    _groups: Sequence[Mapping[str, Any]]

    def gather(self, root: int | None, error_feedback: bool) -> GatheredTorchState | None:
        """Gather the whole state. Return None on ranks that do not need it. Collective unless this rank has it all."""
        whole = self._host.state_dict(root, error_feedback)
        scalars = self._scalars()
        if not whole:
            return None
        slots, updates = whole["arrays"], whole["updates"]
        missed = {name: int(count[0]) for name, count in slots.get(MISSED, {}).items()}
        by_param = {}
        for name, param in self._params.items():
            entry, steps = dict(self._entry(name, param, slots)), updates - missed.get(name, 0)
            if steps or any(bool(torch.any(value)) for value in entry.values()):
                counted = {"step": torch.tensor(float(steps))} if "exp_avg" in entry else {}
                by_param[param] = {**counted, **entry, **scalars.get(name, {})}
        # If torch counts steps itself, only its count is used: a script may set it.
        uncounted = {n: count for n, count in missed.items() if "step" not in by_param.get(self._params[n], {})}
        own = {"updates": updates, "rule": whole["rule"], "size": whole["size"], MISSED: uncounted}
        if FEEDBACK in whole:
            own[FEEDBACK] = map_tensor_leaves(whole[FEEDBACK], to_tensor)
        return GatheredTorchState({param: entry for param, entry in by_param.items() if entry}, own, missed)

    def by_parameter(self) -> ParameterStates:
        """Gather the state of each parameter. Collective."""
        whole = self.gather(None, error_feedback=False)
        assert whole is not None
        states = {
            param: ParameterState(whole.by_param.get(param, {}), whole.own["updates"] - whole.missed.get(name, 0))
            for name, param in self._params.items()
        }
        return ParameterStates(states, whole.own["updates"])

    def load_by_parameter(self, former: ParameterStates) -> None:
        """Set the state of each parameter in `former`. Other parameters start without state. Not collective."""
        names = {id(param): name for name, param in self._params.items()}
        here = [param for group in self._groups for param in group["params"]]
        begun = [former.states.get(param, ParameterState({}, 0)) for param in here]
        missed = {names[id(param)]: former.updates - state.steps for param, state in zip(here, begun, strict=True)}
        packed = {
            "state": {index: state.entry for index, state in enumerate(begun)},
            "param_groups": [{"params": range(len(here))}],
            OWN: {"updates": former.updates, MISSED: missed},
        }
        self.load(self.checked(packed))

    def checked(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Return `state_dict` as the arrays that `load` expects. Raises ConfigurationError if it does not match."""
        if absent := [key for key in ("state", "param_groups") if key not in state_dict]:
            raise ConfigurationError(
                f"load_state_dict got {sorted(map(str, state_dict))}, without {absent}; expected the result of "
                "state_dict() or shard_dict(); if it is one entry of a checkpoint, pass only this entry"
            )
        own, saved = state_dict.get(OWN, {}), list(self._by_name(state_dict))
        steps = {name: int(float(entry["step"])) for name, entry in saved if "step" in entry}
        updates = max(int(own.get("updates", any(entry for _, entry in saved))), *steps.values(), 0)
        missed = dict(own.get(MISSED, {})) | {name: updates - count for name, count in steps.items()}
        if OWN not in state_dict:
            counted = bool(steps) or not saved
            missed = {name: updates - steps.get(name, 0) for name in self._params if counted}
        if OWN not in state_dict or self._host.slots:
            missed |= {name: updates for name, entry in saved if not entry}
        arrays: dict[str, dict[str, Any]] = {
            MISSED: {name: np.array([count], np.int64) for name, count in missed.items() if count}
        }
        entries = dict(saved)
        for slot in self._host.slots:
            arrays[slot] = {name: self._slot(name, slot, entries.get(name, {})) for name in self._params}
        state = {"updates": updates, "rule": own.get("rule", self._host.rule_name), "size": own.get("size", 1)}
        if FEEDBACK in own:
            state[FEEDBACK] = map_tensor_leaves(own[FEEDBACK], _state_as_array)
        return {**state, "arrays": arrays, "entries": entries}

    def load(self, state: Mapping[str, Any]) -> None:
        """Set the state from the result of `checked`. Weights do not change."""
        weights = {name: self._stacked(name, self._host.weights[name]) for name in self._params}
        arrays = {**state["arrays"], WEIGHTS: weights}
        self._host.load_state_dict({**state, "arrays": arrays})
        if isinstance(self._rules, TorchRules):
            slots, entries = self._rules.slots, state["entries"]
            self._rules.load(
                {
                    name: {key: _own_tensor_copy(value) for key, value in entry.items() if key not in (*slots, MASTER)}
                    for name, entry in entries.items()
                    if entry
                }
            )

    def check_shards(self) -> None:
        """Raise ConfigurationError if shards lack state, as with optimizers that torch's own code updates."""
        if isinstance(self._rules, TorchRules):
            raise ConfigurationError(
                f"HostOptimizer: with these options, torch's own code applies {self._rules.kind.__name__}, and shards "
                "lack a part of its state, such as its number of steps; save state_dict() with Checkpoints"
            )

    @staticmethod
    def arrays_of(state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state from a checkpoint with all tensors converted to arrays."""
        arrays: dict[str, Any] = map_tensor_leaves(dict(state), _state_as_array)
        return arrays

    def _entry(self, name: str, param: Any, slots: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for slot, by_name in slots.items():
            if slot not in (WEIGHTS, MISSED) and name in by_name:
                yield _TORCH_NAMES.get(slot, slot), tensor_like_param(to_tensor(by_name[name]), param)

    def _scalars(self) -> dict[str, dict[str, Any]]:
        """Return the states of torch's optimizers outside the flat arrays, collected from the ranks that store them."""
        if not isinstance(self._rules, TorchRules):
            return {}
        own = self._rules.state()
        if not self._rules.sharded:
            return {name: {key: _own_tensor_copy(value) for key, value in entry.items()} for name, entry in own.items()}
        plain = {
            name: {key: float(value) for key, value in entry.items() if value is not None}
            for name, entry in own.items()
        }
        merged: dict[str, dict[str, Any]] = {}
        for told in self._host.allgather_object(plain, "state_dict of torch's optimizers"):
            for name, entry in told.items():
                merged.setdefault(name, {key: torch.tensor(value) for key, value in entry.items()})
        return merged

    def _by_name(self, state_dict: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        names = {id(param): name for name, param in self._params.items()}
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        here = [param for group in self._groups for param in group["params"]]
        if len(saved) != len(here):
            raise ConfigurationError(
                f"the saved state has {counted(len(saved), 'parameter')} in "
                f"{counted(len(state_dict['param_groups']), 'group')}, but this optimizer has {len(here)} in "
                f"{len(self._groups)}; build the model and the groups that were saved"
            )
        for index, param in zip(saved, here, strict=True):
            yield names[id(param)], state_dict["state"].get(index, {})

    def _slot(self, name: str, slot: str, entry: Mapping[str, Any]) -> Any:
        shape, found = self._host.weights[name].shape, entry.get(_TORCH_NAMES.get(slot, slot))
        weights = self._host.weights[name]
        wide = np.float32 if weights.dtype.itemsize < 4 else weights.dtype
        if found is None:
            return self._stacked(name, weights.astype(wide) if slot == MASTER else np.zeros(shape, wide))
        values = _state_as_array(real_tensor(found)).astype(wide, copy=False)
        if values.shape == shape:
            return self._stacked(name, values)
        if self._host.is_local(name) and values.shape[1:] == shape:
            return values
        raise ConfigurationError(
            f"parameter {name!r} was saved with {_TORCH_NAMES.get(slot, slot)!r} of shape {tuple(found.shape)} but has "
            f"shape {tuple(self._params[name].shape)} in this model; build the model that was saved"
        )

    def _stacked(self, name: str, values: Any) -> Any:
        """Return `values`; for a parameter that is not reduced, with a row for each rank, as the host stores them."""
        return np.broadcast_to(values, (self._host.size, *values.shape)) if self._host.is_local(name) else values


def simple_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group that can be sent to other ranks."""
    options = {}
    for name, value in group.items():
        plain = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        if name != "params" and _is_simple_option(plain):
            options[name] = list(plain) if isinstance(plain, tuple) else plain
    return options


def carried_group_options(options: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, Any]:
    """Convert received `options` to the types that `group` has."""
    return {
        name: tuple(value)
        if isinstance(group.get(name), tuple)
        else torch.full_like(group[name], value)
        if isinstance(group.get(name), torch.Tensor)
        else value
        for name, value in options.items()
    }


def _is_simple_option(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_simple_option(one) for one in value)
    return value is None or isinstance(value, bool | int | float | str)


def _state_as_array(value: Any) -> Any:
    return to_arrays([value])()[0] if isinstance(value, torch.Tensor) else value


def _own_tensor_copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


class SpreadTorchState(dict[Any, Any]):
    """Empty mapping for the attribute `state` of torch's optimizers. It refuses writes, which would have no effect."""

    def __missing__(self, key: Any) -> NoReturn:
        raise ConfigurationError(
            "HostOptimizer.state cannot be used, because the state is divided among the ranks; "
            "call state_dict() to gather the state, or load_state_dict() to set it"
        )

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        self.__missing__(key)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        self.__missing__(None)

    clear = setdefault = update = __ior__ = _refuse
