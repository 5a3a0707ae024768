"""`DistributedOptimizer` for `tf.compat.v1` optimizers; Keras optimizers are handed to `ringtrain.keras`."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ringtrain.errors import ConfigurationError
from ringtrain.keras.optimizer import DistributedOptimizer as DistributedKerasOptimizer
from ringtrain.named.ops import Adasum, Average
from ringtrain.named.process_sets import ProcessSet
from ringtrain.named.world import global_process_set, members
from ringtrain.tensorflow.compression import Compression, Compressor
from ringtrain.tensorflow.gradients import GradientOptions, GradientReducer
from ringtrain.tensorflow.tape import groups_from


class DistributedV1Optimizer(tf.compat.v1.train.Optimizer):
    """A `tf.compat.v1` optimizer whose `compute_gradients` reduces over all ranks."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool, options: GradientOptions) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._reducer = GradientReducer(name, options)

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of `var` out of the reduction."""
        self._reducer.register_local(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return the wrapped optimizer's gradients, reduced, with their variables."""
        pairs: Sequence[tuple[Any, Any]] = self._optimizer.compute_gradients(*args, **kwargs)
        if members(self._reducer.options.process_set) == 1:
            return list(pairs)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        return list(zip(self._reducer.reduce(grads, variables), variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Apply gradients with the wrapped optimizer."""
        return self._optimizer.apply_gradients(grads_and_vars, global_step=global_step, name=name)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Return a slot of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Return the names of the wrapped optimizer's slots."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Return the variables of the wrapped optimizer."""
        return self._optimizer.variables(*args, **kwargs)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return `optimizer` (of Keras, or of `tf.compat.v1.train`) as one that reduces gradients over all ranks.

    `name`: of the wrapper (default: "Distributed" and the optimizer's type). `backward_passes_per_step`: passes
    whose gradients are added up before they are reduced; `average_aggregated_gradients` divides them by that
    number. Both need a Keras optimizer. The rest as of `DistributedGradientTape`.
    """
    options = GradientOptions(
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        groups_from(groups, num_groups),
        process_set,
        scale_local_gradients,
    )
    if isinstance(optimizer, keras.optimizers.Optimizer):
        return DistributedKerasOptimizer(
            optimizer,
            name=name,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            **dict(vars(options).items()),
        )
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise ConfigurationError(
            f"DistributedOptimizer: optimizer is a {type(optimizer).__name__}; expected one of Keras or "
            "tf.compat.v1.train"
        )
    checked = options.checked()
    if checked.op is Adasum:
        raise ConfigurationError("DistributedOptimizer: op=Adasum needs a Keras optimizer, or ringtrain.torch")
    if backward_passes_per_step != 1:
        raise ConfigurationError(
            f"DistributedOptimizer: backward_passes_per_step is {backward_passes_per_step}; for tf.compat.v1 "
            "optimizers "
            "only 1 is there: use a Keras optimizer"
        )
    full_name = name or f"Distributed{type(optimizer).__name__}"
    return DistributedV1Optimizer(optimizer, full_name, use_locking, checked)
