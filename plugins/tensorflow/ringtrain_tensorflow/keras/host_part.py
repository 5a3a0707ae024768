"""Connection of a Keras host optimizer with the optimizer on arrays that updates its weights in host memory."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from ringtrain.adapter import Array, HostOptimizerGroups
from ringtrain.errors import ConfigurationError, RingtrainError
from ringtrain.optim import SGD, Rule
from ringtrain.optim import HostOptimizer as ArrayOptimizer
from ringtrain_tensorflow.gradients import identity
from ringtrain_tensorflow.keras.api import IS_KERAS_2
from ringtrain_tensorflow.keras.host_rules import check_settings, fixed_settings, rules_of


@dataclass
class KerasHostPart:
    """Data that a HostOptimizer adds to a Keras optimizer. `host`: the optimizer that updates the weights. `variables`:
    the variables that `host` trains."""

    options: Mapping[str, Any]
    groups: HostOptimizerGroups
    sparse_as_dense: bool = False
    variables: dict[str, Any] = field(default_factory=dict)
    made: ArrayOptimizer | None = None
    rule: Rule | None = None  # as it was built
    settings: Mapping[str, Any] = field(default_factory=dict)  # when it was built
    gathered: Mapping[str, Any] = field(default_factory=dict)  # the whole state, after the last update
    pending: Mapping[str, Any] = field(default_factory=dict)  # a state that was restored before the optimizer was built

    @property
    def host(self) -> ArrayOptimizer:
        if self.made is None:
            raise ConfigurationError(
                "the HostOptimizer has no variables yet; call optimizer.build(model.trainable_variables) first"
            )
        return self.made

    @property
    def has_state(self) -> bool:
        """Whether the optimizer has state besides weights, update count and learning rate."""
        return bool(self.host.slots or self.options["compression"])

    def make(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Build the host's optimizer for `variables`, and send rank 0's values to all ranks. Collective."""
        if not tf.executing_eagerly():
            raise ConfigurationError(
                "HostOptimizer was used in a graph of tf.compat.v1; expected eager execution, tf.function or "
                "Keras' fit; in such a graph use ringtrain.tensorflow.DistributedOptimizer"
            )
        # Keras numbers its layers by all layers that a process has created, so another layer may later have the same
        # name.
        self.variables = {f"{index}.{_keras_leaf(variable)}": variable for index, variable in enumerate(variables)}
        self.settings = fixed_settings(optimizer)
        decaying, plain = rules_of(optimizer, number_of(optimizer.learning_rate), 0)
        without = [name for name, variable in self.variables.items() if not optimizer._use_weight_decay(variable)]
        self.rule = decaying
        arrays = {name: np.array(tf.convert_to_tensor(variable)) for name, variable in self.variables.items()}
        group = self.groups.first(self.options["elastic"])
        # The variables are copies that change only at the end of the step.
        self.made = ArrayOptimizer(
            arrays, decaying, groups=[(plain, without)], group=group, update_during_backward=True, **self.options
        )
        self.write(self.weights(), constrained=False)

    def weights(self) -> list[Array]:
        """Return copies of the host's weights, because TensorFlow may use an array's memory for a variable."""
        return [self.host.weights[name].copy() for name in self.variables]

    def write(self, weights: Sequence[Any], constrained: bool = True) -> None:
        """Assign `weights` to the variables, and apply their constraints if `constrained`."""
        for variable, value in zip(self.variables.values(), weights, strict=True):
            variable.assign(value)
            if constrained and variable.constraint is not None:
                variable.assign(variable.constraint(variable))

    def names(self, variables: Sequence[Any]) -> list[str]:
        """Return the name of each of `variables`. Raises ConfigurationError for a variable that is not trained."""
        known = {identity(variable): name for name, variable in self.variables.items()}
        if unknown := [variable.name for variable in variables if identity(variable) not in known]:
            raise ConfigurationError(
                f"HostOptimizer got gradients of {unknown}, but was built without these variables; call "
                "optimizer.build() with all variables before the first step"
            )
        return [known[identity(variable)] for variable in variables]

    def check_sparse(self, grads: Mapping[str, Any]) -> None:
        """Raise ConfigurationError for sparse gradients that Keras would process differently.

        Keras 3 passes repeated rows to the update one by one; Keras 2 sums them, but clips them before.
        """
        sparse = [name for name, grad in grads.items() if isinstance(grad, tf.IndexedSlices)]
        clips = self.settings["global_clipnorm"]
        differs = clips or not (IS_KERAS_2 or isinstance(self.rule, SGD))
        if sparse and not self.sparse_as_dense and differs:
            how = "global_clipnorm" if clips else type(self.rule).__name__.removeprefix("Keras")
            raise ConfigurationError(
                f"HostOptimizer: the gradient of {sparse[0]} is sparse. Keras' {how} applies repeated rows one by one, "
                "but HostOptimizer sums them; pass sparse_as_dense=True to sum them, like dense "
                "gradients, or use ringtrain.keras.DistributedOptimizer"
            )

    def open(
        self, optimizer: Any, absent: Collection[str], rate: Array, updates: Array, *values: Array
    ) -> Sequence[Array]:
        """Start an update from `values`, the current values of the variables, which a script may have changed."""
        host, self.gathered = self.host, {}
        if host.accumulating:
            raise RingtrainError(
                "the last run of this graph failed on this rank while gradients were being reduced, so other "
                "ranks could mix them up with gradients of this run; call shutdown() and init() on every rank, "
                "and resume from the last checkpoint"
            )
        check_settings(optimizer, self.settings)
        if int(updates) > host.updates and self.has_state and not optimizer.counts_skipped_steps:
            raise ConfigurationError(
                f"HostOptimizer: optimizer.iterations is {int(updates)}, but its moments are from update "
                f"{host.updates}; the restored file had no moments. On every rank, restore a file that a "
                "HostOptimizer saved after gather_state(), or call load_state_dict()"
            )
        host.take_weights_from(dict(zip(self.variables, values, strict=True)))
        host.set_rules(rules_of(optimizer, float(rate), int(updates)))
        for name in absent:
            self.submit(name, None)
        return []

    def submit(self, name: str, gradient: Array | None) -> Sequence[Array]:
        """Pass the gradient of the variable `name` to the host optimizer. `gradient`: None if this rank has none.
        Return no arrays."""
        self.host.submit(name, gradient)
        return []

    def finish(self) -> Sequence[Array]:
        """Return the new weights."""
        self.host.step()
        return self.weights()


def _keras_leaf(variable: Any) -> str:
    return str(variable.name).split(":")[0].split("/")[-1]


def number_of(value: Any) -> Any:
    return np.asarray(tf.convert_to_tensor(value)).item()
