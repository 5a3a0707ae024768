"""Update rules, such as SGD and Adam: frozen configuration and the arithmetic of one step, without state.

A rule names the state arrays that it needs per weight and updates an `OwnedBucketPart`; memory, sharding and the ring
are in other modules.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ringtrain.errors import ConfigurationError, kind_of
from ringtrain.optim.kernels import AdamTerms, OptimizerKernels, OwnedBucketPart, SgdTerms


@dataclass(frozen=True)
class StepValues:
    """Values that an update rule gets in one update.

    `number`: number of the update, from 1; `rate`: learning rate after the schedule; `scale`: factor that converts the
    sum over ranks to the clipped mean gradient.
    """

    number: int
    rate: float
    scale: float


class _StatefulUpdateRule(Protocol):
    @property
    def lr(self) -> float: ...

    @property
    def state_names(self) -> tuple[str, ...]: ...


@runtime_checkable
class ElementUpdateRule(_StatefulUpdateRule, Protocol):
    """Interface of a rule that updates each weight only from its own gradient and state."""

    def update(self, part: OwnedBucketPart, step: StepValues, kernels: OptimizerKernels) -> None: ...


@runtime_checkable
class LayerUpdateRule(_StatefulUpdateRule, Protocol):
    """Interface of a rule that scales the direction of each layer by a ratio of the layer's norms, such as LAMB."""

    def direction(self, part: OwnedBucketPart, step: StepValues, kernels: OptimizerKernels) -> None: ...

    def trust_ratio(self, weight_norm: float, direction_norm: float) -> float: ...


Rule = ElementUpdateRule | LayerUpdateRule


@runtime_checkable
class FusableUpdateRule(ElementUpdateRule, Protocol):
    """Interface of a rule whose `update` only calls `kernels.sgd` or `kernels.adam` with its `terms`.

    Compiled code can therefore apply it during the reduction. Its states are those of `state_names`, in the kernels'
    order.
    """

    def terms(self, step: StepValues) -> SgdTerms | AdamTerms: ...


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent: `v = momentum * v + g`, `w -= lr * v`.

    If `nesterov` is True: `w -= lr * (g + momentum * v)`. `weight_decay` is added to the gradient (L2).

    Momentum as in Sutskever, Martens, Dahl & Hinton 2013, with the rate outside of the velocity.
    """

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        who = type(self).__name__
        _require_rule_value(who, "lr", self.lr, self.lr >= 0, ">= 0")
        _require_rule_value(who, "momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")
        _require_rule_value(who, "weight_decay", self.weight_decay, self.weight_decay >= 0, ">= 0")
        if self.nesterov and not self.momentum:
            raise ConfigurationError(f"{who}: nesterov=True needs a momentum above 0, such as momentum=0.9")

    @property
    def state_names(self) -> tuple[str, ...]:
        """Return the names of the rule's state arrays."""
        return ("momentum",) if self.momentum else ()

    def terms(self, step: StepValues) -> SgdTerms:
        """Return the coefficients of `step` for the kernels."""
        return SgdTerms(step.rate, step.scale, self.momentum, self.nesterov, self.weight_decay)

    def update(self, part: OwnedBucketPart, step: StepValues, kernels: OptimizerKernels) -> None:
        """Update the weights and the state of `part` in place."""
        kernels.sgd(part, self.terms(step))


@dataclass(frozen=True)
class Nesterov(SGD):
    """`SGD` with Nesterov's momentum and the usual defaults of an outer optimizer (Douillard et al. 2023)."""

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True


@dataclass(frozen=True)
class _AdamRule:
    """Common part of the rules that store mean and mean square of the gradient."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        who = type(self).__name__
        _require_rule_value(who, "lr", self.lr, self.lr >= 0, ">= 0")
        _require_rule_value(who, "beta1", self.beta1, 0 <= self.beta1 < 1, "in [0, 1)")
        _require_rule_value(who, "beta2", self.beta2, 0 <= self.beta2 < 1, "in [0, 1)")
        _require_rule_value(who, "epsilon", self.epsilon, self.epsilon > 0, "> 0")
        _require_rule_value(who, "weight_decay", self.weight_decay, self.weight_decay >= 0, ">= 0")

    @property
    def state_names(self) -> tuple[str, ...]:
        """Return the names of the rule's state arrays."""
        return ("mean", "square")

    def _terms(self, step: StepValues, *, coupled_decay: float = 0.0, decoupled_decay: float = 0.0) -> AdamTerms:
        return AdamTerms(
            rate=step.rate,
            scale=step.scale,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            coupled_decay=coupled_decay,
            decoupled_decay=decoupled_decay,
            correction1=1.0 - self.beta1**step.number,
            correction2=1.0 - self.beta2**step.number,
        )


@dataclass(frozen=True)
class Adam(_AdamRule):
    """Adam, with mean and uncentred variance of the gradient, both corrected for their start at zero.

    `weight_decay` is added to the gradient (L2), so it is rescaled too; AdamW decays the weights instead. Kingma & Ba
    2015, algorithm 1.
    """

    def terms(self, step: StepValues) -> AdamTerms:
        """Return the coefficients of `step` for the kernels."""
        return self._terms(step, coupled_decay=self.weight_decay)

    def update(self, part: OwnedBucketPart, step: StepValues, kernels: OptimizerKernels) -> None:
        """Update the weights and the state of `part` in place."""
        kernels.adam(part, self.terms(step))


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weights shrink by `lr * weight_decay` each step, independent of the gradient.

    Loshchilov & Hutter 2019, algorithm 2, with the decay multiplied by the learning rate, as is usual in practice.
    """

    weight_decay: float = 0.01

    def terms(self, step: StepValues) -> AdamTerms:
        """Return the coefficients of `step` for the kernels."""
        return self._terms(step, decoupled_decay=self.weight_decay)


@dataclass(frozen=True)
class LAMB(_AdamRule):
    """Adam's direction plus decay, scaled per layer by `norm(weights) / norm(direction)`, for very large batches.

    The ratio is 1 for a layer where either norm is 0. A layer is one registered parameter.
    You et al. 2020, algorithm 2, with the identity as phi.
    """

    epsilon: float = 1e-6
    weight_decay: float = 0.01

    def direction(self, part: OwnedBucketPart, step: StepValues, kernels: OptimizerKernels) -> None:
        """Update the state of `part`, and write the direction of the update to `part.gradients`."""
        kernels.lamb_direction(part, self._terms(step, decoupled_decay=self.weight_decay))

    def trust_ratio(self, weight_norm: float, direction_norm: float) -> float:
        """Return the factor on the learning rate for a layer whose weights and direction have these L2 norms."""
        return weight_norm / direction_norm if weight_norm > 0 and direction_norm > 0 else 1.0


def _require_rule_value(who: str, name: str, value: float, holds: bool, expected: str) -> None:
    if not (holds and math.isfinite(value)):
        raise ConfigurationError(f"{who}: {name} is {value}; expected a finite number {expected}")


def check_rule(rule: object) -> None:
    """Raise ConfigurationError if `rule` is not an update rule."""
    if isinstance(rule, type) or not isinstance(rule, Rule):
        raise ConfigurationError(
            f"rule is {kind_of(rule)}; expected an instance of a rule of ringtrain.optim, such as AdamW(lr=1e-3)"
        )
