"""Rules with which the host optimizer updates weights, created from a torch optimizer.

SGD, Adam and AdamW have compiled rules with the same arithmetic. Torch's own code applies every other optimizer to the
elements that a rank updates, as parameters in host memory. If the update of an element depends only on that element,
these are a rank's shard. For others, such as Adafactor, they are whole parameters on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from ringtrain.errors import ConfigurationError, kind_of
from ringtrain.optim import LAMB, SGD, Adam, AdamW, Rule
from ringtrain.optim.kernels import OptimizerKernels, OwnedBucketPart
from ringtrain.optim.rules import StepValues
from ringtrain_torch.bridge import to_tensor
from ringtrain_torch.optimizer_pattern import TorchOptimizerPattern, simple_group_options

Group = Mapping[str, Any]

# Our names of states, by torch's names.
SLOTS: Final = {"momentum_buffer": "momentum", "exp_avg": "mean", "exp_avg_sq": "square"}
_BY_ELEMENT: Final = (
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad,
    torch.optim.Adadelta, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.ASGD,
    torch.optim.Rprop,
)  # fmt: skip
_REFUSED: Final = {
    torch.optim.LBFGS: "it evaluates its closure several times a step",
    torch.optim.SparseAdam: "it supports only sparse gradients, and the host optimizer makes them dense",
}


def _torch_sgd(group: Group) -> Rule:
    return SGD(float(group["lr"]), float(group["momentum"]), bool(group["nesterov"]), float(group["weight_decay"]))


def _torch_adam_like(kind: Callable[..., Rule]) -> Callable[[Group], Rule]:
    def made(group: Group) -> Rule:
        beta1, beta2 = map(float, group["betas"])
        return kind(float(group["lr"]), beta1, beta2, float(group["eps"]), float(group["weight_decay"]))

    return made


_OURS: Final[Mapping[type, Callable[[Group], Rule]]] = {
    SGD: _torch_sgd, Adam: _torch_adam_like(Adam), AdamW: _torch_adam_like(AdamW), LAMB: _torch_adam_like(LAMB),
}  # fmt: skip


class TorchGroupRules:
    """Factory that creates rules from an optimizer's parameter groups, for each step.

    `sharded`: whether a rank needs only its own elements of a parameter.
    """

    sharded = True

    def of(self, groups: Sequence[Group]) -> list[Rule]:
        """Return the current rule of each parameter group. Raises ConfigurationError for invalid values."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """Return the options that a parameter group has initially, without its parameters."""
        return {}


class PlainTorchRules(TorchGroupRules):
    """Factory for rules of `ringtrain.optim`. A group's options are the rule's fields under torch's names."""

    def __init__(self, rule: Rule, make: Callable[[Group], Rule] | None = None) -> None:
        self._rule = rule
        self._make = make or _OURS.get(type(rule))

    def of(self, groups: Sequence[Group]) -> list[Rule]:
        return [self._of(group) for group in groups]

    def options(self) -> dict[str, Any]:
        rule: Any = self._rule
        if isinstance(rule, SGD):
            names = {"lr": rule.lr, "momentum": rule.momentum, "nesterov": rule.nesterov}
            return {**names, "weight_decay": rule.weight_decay}
        if type(rule) in _OURS:
            betas = (rule.beta1, rule.beta2)
            return {"lr": rule.lr, "betas": betas, "eps": rule.epsilon, "weight_decay": rule.weight_decay}
        return {"lr": rule.lr}

    def _of(self, group: Group) -> Rule:
        if self._make is not None:
            return self._make(group)
        if group["lr"] == self._rule.lr:
            return self._rule
        rule: Any = self._rule
        changed: Rule = replace(rule, lr=float(group["lr"]))
        return changed


class NativeTorchRules(PlainTorchRules):
    """Factory of compiled rules for a torch optimizer. `plain`: options that must have these values, because the rules
    do not support others."""

    def __init__(self, kind: type, plain: Mapping[str, Any]) -> None:
        super().__init__(kind(lr=0.0))
        self._plain = plain

    def _of(self, group: Group) -> Rule:
        for name, value in self._plain.items():
            if group[name] != value:
                raise ConfigurationError(
                    f"HostOptimizer: {name} is {group[name]}, but was {value} when the optimizer was "
                    f"created; create the optimizer with {name}={group[name]}"
                )
        return super()._of(group)


_PLAIN_SGD: Final = {"dampening": 0, "maximize": False, "differentiable": False}
_PLAIN_ADAM: Final = {"amsgrad": False, "maximize": False, "differentiable": False}
_NATIVE: Final[Mapping[type, tuple[type, Mapping[str, Any]]]] = {
    torch.optim.SGD: (SGD, _PLAIN_SGD),
    torch.optim.Adam: (Adam, {**_PLAIN_ADAM, "decoupled_weight_decay": False}),
    torch.optim.AdamW: (AdamW, _PLAIN_ADAM),
}


class TorchRule:
    """Rule that runs a torch optimizer, with the options of one group, on each parameter's elements in host memory."""

    by_parameter = True  # called for one parameter at a time

    def __init__(self, made: TorchRules, options: Mapping[str, Any]) -> None:
        self._made = made
        self._options = dict(options)
        self._has_rate = options.get("lr") is not None
        self.name = made.kind.__name__

    @property
    def lr(self) -> float:
        """Learning rate; 1 if the optimizer has no learning rate."""
        return float(self._options["lr"]) if self._has_rate else 1.0

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the rule's state arrays."""
        return self._made.slots

    def update(self, part: OwnedBucketPart, step: StepValues, kernels: OptimizerKernels) -> None:
        """Run torch's optimizer on the elements of one parameter."""
        self._made.update(part, {**self._options, "lr": step.rate} if self._has_rate else self._options, step)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchRule) and other.name == self.name and other._options == self._options

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in sorted(self._options.items()))})"


class TorchRules(TorchGroupRules):
    """Factory of rules for a torch optimizer without compiled code. `slots`: names of states with the parameter's
    shape, which the host optimizer stores in flat arrays, if sharded. `state` has all other states by parameter."""

    def __init__(self, optimizer: torch.optim.Optimizer, sharded: bool) -> None:
        self.kind = type(optimizer)
        self.sharded = sharded
        self._like = TorchOptimizerPattern(optimizer)
        self.slots = self._like.slots() if sharded else ()
        self._made: dict[str, torch.optim.Optimizer] = {}
        self._loaded: dict[str, dict[str, Any]] = {}

    def of(self, groups: Sequence[Group]) -> list[Rule]:
        return [TorchRule(self, simple_group_options(group)) for group in groups]

    def state(self) -> dict[str, dict[str, Any]]:
        """Return, by parameter, the states that the flat arrays of the host optimizer do not store."""
        held = {name: optimizer.state[_only_elementwise(optimizer)] for name, optimizer in self._made.items()}
        kept = {name: {k: v for k, v in state.items() if k not in self.slots} for name, state in held.items()}
        return {**self._loaded, **{name: state for name, state in kept.items() if held[name]}}

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Load `state`, the states that the flat arrays of the host optimizer do not store. Those arrays are loaded
        elsewhere."""
        self._made.clear()
        self._loaded = {name: dict(values) for name, values in state.items()}

    def update(self, part: OwnedBucketPart, options: Mapping[str, Any], step: StepValues) -> None:
        """Update the weights of `part`, a single parameter, with `options`."""
        assert part.spec is not None, "it is called for one parameter at a time"
        shape = (-1,) if self.sharded else part.spec.shape
        weights, gradient = to_tensor(part.weights).view(shape), to_tensor(part.gradients).view(shape)
        optimizer = self._made.get(part.spec.name)
        if optimizer is None:
            optimizer = self._begin(part, weights, options)
        param = _only_elementwise(optimizer)
        if param.data_ptr() != weights.data_ptr():
            param.data = weights
        param.grad = gradient.mul_(step.scale)
        optimizer.param_groups[0].update(options)
        optimizer.step()
        param.grad = None
        self._keep(part, optimizer.state[param])

    def _begin(self, part: OwnedBucketPart, weights: torch.Tensor, options: Mapping[str, Any]) -> torch.optim.Optimizer:
        assert part.spec is not None
        param = torch.nn.Parameter(weights)
        optimizer = self._like.made(param, options)
        loaded = self._loaded.pop(part.spec.name, None)
        if loaded is not None:
            slots = {slot: to_tensor(part.state[slot]) for slot in self.slots}
            optimizer.state[param] = {**loaded, **slots}
        else:
            self._keep(part, optimizer.state[param])
        self._made[part.spec.name] = optimizer
        return optimizer

    def _keep(self, part: OwnedBucketPart, state: dict[str, Any]) -> None:
        """Copy from `state` to the host optimizer's flat arrays the states that these store, and make `state` refer to
        the arrays."""
        for slot in self.slots:
            own, value = to_tensor(part.state[slot]), state.get(slot)
            if isinstance(value, torch.Tensor) and value.data_ptr() != own.data_ptr():
                own.copy_(value.view(-1))
                state[slot] = own


def rules_of(optimizer: torch.optim.Optimizer, sharded: bool | None) -> TorchGroupRules:
    """Return the rule factory for the groups of `optimizer`. `sharded`: the user's choice; None: shard if possible.

    Raises ConfigurationError for an optimizer that cannot be applied in this way.
    """
    kind = type(optimizer)
    for refused, reason in _REFUSED.items():
        if isinstance(optimizer, refused):
            raise ConfigurationError(
                f"HostOptimizer can't apply {kind.__name__}: {reason}; use ringtrain.torch.DistributedOptimizer"
            )
    if kind in _NATIVE:
        ours, plain = _NATIVE[kind]
        if all(group[name] == value for group in optimizer.param_groups for name, value in plain.items()):
            return NativeTorchRules(ours, plain)
    by_element = kind in _BY_ELEMENT
    if sharded and not by_element:
        raise ConfigurationError(
            f"HostOptimizer: {kind.__name__} may need whole parameters, but sharded is True; remove sharded, so "
            "that every rank stores the whole state"
        )
    return TorchRules(optimizer, by_element and sharded is not False)


def _only_elementwise(optimizer: torch.optim.Optimizer) -> Any:
    return optimizer.param_groups[0]["params"][0]


def check_torch_rule_kind(rule: Any) -> None:
    """Raise ConfigurationError if a torch optimizer was passed where a rule is expected."""
    if isinstance(rule, torch.optim.Optimizer):
        raise ConfigurationError(
            f"HostOptimizer: the rule is {kind_of(rule)}; pass torch's optimizer first: HostOptimizer(optimizer, model)"
        )
