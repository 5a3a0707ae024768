"""Torch optimizers of single parameters, created like an optimizer of the script."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from ringtrain.errors import ConfigurationError

_OPTIONS_OF_STEP: Final = ("foreach", "fused", "capturable")  # options for the implementation, not the result
# Scales of gradients at which clipping by norm or value has an effect, and at which it has none.
_TRIED_SCALES: Final = (1e-3, 1.0, 1e3)
_TRIED_STEPS: Final = 4


class TorchOptimizerPattern:
    """Factory of optimizers like `optimizer`, each for one parameter.

    A custom class may do what none of torch's does: update one parameter from the gradients of all, count updates
    itself, or store state in attributes other than groups. Such attributes are copied. An optimizer whose update of a
    parameter needs another parameter's gradient or state is refused, because it would silently train differently.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Test any optimizer but torch's own. Raises ConfigurationError if it cannot update parameters one by one."""
        self._optimizer: Any = optimizer
        self._kind: Any = type(optimizer)
        self._is_torchs = self._kind.__module__.startswith("torch.optim.")
        self._attributes: dict[str, Any] = {}
        if not self._is_torchs:
            plain = vars(torch.optim.SGD([torch.zeros(1)]))
            own = {name: value for name, value in vars(optimizer).items() if name not in (*plain, "step")}
            self._attributes = self._copied(own)
            self._try()

    def made(self, param: torch.nn.Parameter, options: Mapping[str, Any]) -> torch.optim.Optimizer:
        """Return an optimizer of `param` alone. `options`: options of a parameter group."""
        return self._made([{"params": [param], **options}])

    def slots(self) -> tuple[str, ...]:
        """Return the names of states with the shape of the parameter, found by a step on a small parameter of each
        group."""
        slots: dict[str, None] = {}
        for group in self._optimizer.param_groups:
            param = torch.nn.Parameter(torch.ones(5))
            toy = self.made(param, simple_group_options(group))
            param.grad = torch.ones(5)
            toy.step()
            values = toy.state[param].items()
            slots |= {name: None for name, value in values if isinstance(value, torch.Tensor) and value.shape == (5,)}
        return tuple(slots)

    def _made(self, groups: Sequence[Mapping[str, Any]]) -> torch.optim.Optimizer:
        if self._is_torchs:
            taken = inspect.signature(self._kind.__init__).parameters
            options = {name: value for name, value in groups[0].items() if name in taken and name != "params"}
            made: torch.optim.Optimizer = self._kind(groups[0]["params"], **options)
            return made
        own: Any = self._kind.__new__(self._kind)
        torch.optim.Optimizer.__init__(own, [dict(group) for group in groups], dict(self._optimizer.defaults))
        own.__dict__.update(copy.deepcopy(self._attributes))
        return own

    def _copied(self, attributes: dict[str, Any]) -> dict[str, Any]:
        seen: dict[int, Any] = {}
        try:
            copied = copy.deepcopy(attributes, seen)
        except Exception as exc:
            self._refuse(f"an attribute of it can't be copied ({exc})", exc)
        if any(isinstance(one, torch.optim.Optimizer | torch.nn.Parameter) for one in seen.values()):
            self._refuse("it has another optimizer, or parameters outside its groups")
        return copied

    def _try(self) -> None:
        """Update a few parameters together and one by one. Raises ConfigurationError if the results differ."""
        groups = sorted(self._optimizer.param_groups, key=lambda group: -len(group["params"]))
        for scale in _TRIED_SCALES:
            try:
                with torch.random.fork_rng(devices=[]):
                    together, apart = (self._tried(groups, scale, is_apart) for is_apart in (False, True))
            except Exception as exc:
                self._refuse(f"its step() has raised {type(exc).__name__}: {exc}", exc)
            for one, other in zip(together, apart, strict=True):
                if not torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True):
                    self._refuse(
                        "its update of a parameter depends on other parameters, or on how often it has stepped"
                    )

    def _tried(self, groups: Sequence[Mapping[str, Any]], scale: float, is_apart: bool) -> list[torch.Tensor]:
        """Return parameters after some steps, which update them one by one if `is_apart`, otherwise together.

        Uses two small random parameters of the first group and one of the second. In one step, the first parameter has
        no gradient.
        """
        chance = torch.Generator().manual_seed(0)
        made, params = [], []
        for group, most in zip(groups, (2, 1), strict=False):
            own = [
                torch.nn.Parameter(_random_like(one, chance)) for one in sorted(group["params"], key=torch.numel)[:most]
            ]
            made.append({**simple_group_options(group), "params": own})
            params += own
        apart = [{**group, "params": [param]} for group in made for param in group["params"]]
        optimizers = [self._made([group]) for group in apart] if is_apart else [self._made(made)]
        for step in range(_TRIED_STEPS):
            for param in params:
                param.grad = scale * _random_like(param, chance)
            if step == 1:
                params[0].grad = None
            for optimizer, group in zip(optimizers, apart, strict=False):
                if is_apart:  # as in each update on the host
                    optimizer.param_groups[0].update({**group, "params": optimizer.param_groups[0]["params"]})
                if any(param.grad is not None for own in optimizer.param_groups for param in own["params"]):
                    optimizer.step()
        return [param.detach() for param in params]

    def _refuse(self, why: str, exc: Exception | None = None) -> Any:
        raise ConfigurationError(
            f"HostOptimizer can't apply {self._kind.__name__} to parameters one by one: {why}; use "
            "ringtrain.torch.DistributedOptimizer"
        ) from exc


def _random_like(param: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    return torch.randn(param.shape, generator=chance).to(param.dtype)


def simple_group_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group that determine its update."""
    left_out = (
        "params",
        "param_names",
        "initial_lr",
        "max_lr",
        "min_lr",
        "base_momentum",
        "max_momentum",
        "swa_lr",
    )
    options = {name: value for name, value in group.items() if name not in (*left_out, *_OPTIONS_OF_STEP)}
    return {name: value.item() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
