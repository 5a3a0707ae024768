"""Update rules with the arithmetic of Keras' optimizers, for those that have compiled kernels."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import tensorflow as tf

from ringtrain.errors import ConfigurationError, counted, kind_of
from ringtrain.optim import LAMB, SGD, Adam, Rule
from ringtrain.optim.kernels import AdamTerms, OptimizerKernels, OwnedBucketPart, SgdTerms
from ringtrain.optim.rules import StepValues
from ringtrain_tensorflow.keras.api import is_keras_optimizer, keras


@dataclass(frozen=True)
class KerasSGD(SGD):
    """Update rule of Keras' SGD: velocities contain the learning rate, and `weight_decay` shrinks weights."""

    def terms(self, step: StepValues) -> SgdTerms:
        """Return the constants with which compiled kernels apply this rule."""
        decay = step.rate * self.weight_decay
        return SgdTerms(1.0, step.scale * step.rate, self.momentum, self.nesterov, decay)

    def update(self, part: OwnedBucketPart, step: StepValues, kernels: OptimizerKernels) -> None:
        """Update the weights and the state of `part` in place."""
        kernels.sgd(part, self.terms(step))


@dataclass(frozen=True)
class KerasAdam(Adam):
    """Update rule of Keras' Adam and AdamW: `epsilon` is added before bias correction, and `weight_decay` shrinks
    weights. `number`: number of this update, the same for all variables."""

    number: int = field(default=1, repr=False)  # ranks compare rules by their repr
    epsilon_is_corrected: bool = False

    def terms(self, step: StepValues) -> AdamTerms:
        """Return the constants with which compiled kernels apply this rule."""
        correction1, correction2 = 1.0 - self.beta1**self.number, 1.0 - self.beta2**self.number
        epsilon = self.epsilon if self.epsilon_is_corrected else self.epsilon / math.sqrt(correction2)
        return AdamTerms(
            rate=step.rate,
            scale=step.scale,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=epsilon,
            coupled_decay=0.0,
            decoupled_decay=self.weight_decay,
            correction1=correction1,
            correction2=correction2,
        )


# Creates a rule from the optimizer, learning rate, number of the update, and weight decay.
Make = Callable[[Any, float, int, float], Rule]


def _keras_sgd(optimizer: Any, rate: float, number: int, decay: float) -> Rule:
    momentum = float(optimizer.momentum)
    return KerasSGD(rate, momentum, bool(optimizer.nesterov and momentum), decay)


def _keras_adam(optimizer: Any, rate: float, number: int, decay: float) -> Rule:
    betas = float(optimizer.beta_1), float(optimizer.beta_2)
    corrected = bool(getattr(optimizer, "adaptive_epsilon", False))
    return KerasAdam(rate, *betas, float(optimizer.epsilon), decay, number, corrected)


@dataclass(frozen=True)
class KerasLAMB(LAMB):
    """Update rule of Keras' Lamb. Each variable is one layer. `number`: see `KerasAdam`."""

    number: int = field(default=1, repr=False)

    def direction(self, part: OwnedBucketPart, step: StepValues, kernels: OptimizerKernels) -> None:
        """Update the state of `part`, and replace its gradient by the update direction."""
        terms = self._terms(replace(step, number=self.number))
        kernels.lamb_direction(part, terms)


def _keras_lamb(optimizer: Any, rate: float, number: int, decay: float) -> Rule:
    betas = float(optimizer.beta_1), float(optimizer.beta_2)
    return KerasLAMB(rate, *betas, float(optimizer.epsilon), decay, number)


_MAKE: Final[Mapping[type, Make]] = {
    keras.optimizers.SGD: _keras_sgd,
    keras.optimizers.Adam: _keras_adam,
    keras.optimizers.AdamW: _keras_adam,
    **({keras.optimizers.Lamb: _keras_lamb} if hasattr(keras.optimizers, "Lamb") else {}),  # Keras 2 has none
}
_INSTEAD: Final = "take ringtrain.keras.DistributedOptimizer, which applies every optimizer of Keras"
_REFUSED: Final = (
    "clipnorm", "clipvalue", "use_ema", "amsgrad", "gradient_accumulation_steps", "loss_scale_factor"
)  # fmt: skip
# Read when the optimizer is built. The last two are patterns of Keras 3 and names of Keras 2.
_FIXED: Final = (
    "global_clipnorm", "_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern",
    "_exclude_from_weight_decay_names",
)  # fmt: skip


def check_keras_optimizer(optimizer: Any) -> None:
    """Raise ConfigurationError, with an alternative, if `optimizer` has no rule in this module or has made updates."""
    if not is_keras_optimizer(optimizer):
        raise ConfigurationError(f"HostOptimizer: optimizer is {kind_of(optimizer)}; expected a Keras optimizer")
    if type(optimizer) not in _MAKE:
        raise ConfigurationError(
            f"HostOptimizer was given {kind_of(optimizer)}; expected keras.optimizers.SGD, Adam, AdamW or Lamb: "
            f"{_INSTEAD}"
        )
    _check_values(optimizer)
    if done := int(tf.convert_to_tensor(optimizer.iterations)):
        raise ConfigurationError(
            f"HostOptimizer was given an optimizer that has made {counted(done, 'update')}, whose state "
            "would be lost; pass a new optimizer, and load the state_dict() of a HostOptimizer"
        )


def _check_values(optimizer: Any) -> None:
    """Raise ConfigurationError if no rule of this module supports a setting of `optimizer`."""
    for name in _REFUSED:
        if value := getattr(optimizer, name, None):
            raise ConfigurationError(
                f"HostOptimizer: {name} is {value}, which is not supported; leave it out, or {_INSTEAD}"
            )
    make = _make_of(optimizer)
    if make is _keras_sgd and optimizer.momentum and optimizer.weight_decay:
        raise ConfigurationError(
            f"HostOptimizer: SGD has momentum={optimizer.momentum} and weight_decay={optimizer.weight_decay}, "
            f"which is not supported; leave one out, or {_INSTEAD}"
        )
    if make is _keras_lamb and optimizer.weight_decay:
        raise ConfigurationError(
            f"HostOptimizer: Lamb has weight_decay={optimizer.weight_decay}, which is not supported; leave it out, or "
            f"{_INSTEAD}"
        )


def fixed_settings(optimizer: Any) -> dict[str, Any]:
    """Return the settings of `optimizer` that must not change after it is built."""
    return {name: getattr(optimizer, name, None) for name in _FIXED}


def check_settings(optimizer: Any, built: Mapping[str, Any]) -> None:
    """Raise ConfigurationError if a setting in `built` has changed since the build, or one is not supported."""
    _check_values(optimizer)
    for name, value in fixed_settings(optimizer).items():
        if value != built[name]:
            what = "exclude_from_weight_decay" if name.startswith("_exclude") else name
            raise ConfigurationError(
                f"HostOptimizer: {what} was changed after the optimizer was built; set {what} before "
                f"build(), compile() or the first step, or {_INSTEAD}"
            )


def rules_of(optimizer: Any, rate: float, updates: int) -> list[Rule]:
    """Return two rules for the next update: for variables with weight decay and without."""
    make, decay = _make_of(optimizer), float(optimizer.weight_decay or 0.0)
    return [make(optimizer, rate, updates + 1, amount) for amount in (decay, 0.0)]


def _make_of(optimizer: Any) -> Make:
    return next(_MAKE[kind] for kind in type(optimizer).__mro__ if kind in _MAKE)
