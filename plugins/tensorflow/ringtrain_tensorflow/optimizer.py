"""`DistributedOptimizer` for the optimizers of Keras and of `tf.compat.v1.train`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ringtrain import Adasum, Average, ProcessSet, global_process_set
from ringtrain.errors import ConfigurationError, kind_of
from ringtrain_tensorflow.compression import Compression, Compressor
from ringtrain_tensorflow.gradients import TensorFlowGradientOptions, TensorFlowGradientReducer, groups_argument
from ringtrain_tensorflow.keras.api import is_keras_optimizer
from ringtrain_tensorflow.keras.optimizer import DistributedOptimizer as DistributedKerasOptimizer
from ringtrain_tensorflow.v1_optimizer import (
    AccumulatingV1Optimizer,
    AdasumV1Optimizer,
    DistributedV1Optimizer,
    WrappedV1Optimizer,
)


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
    """Return an optimizer like `optimizer` (Keras or `tf.compat.v1.train`) that reduces gradients over all ranks.

    `name`: name of the wrapper (default: "Distributed" and the optimizer's type). `backward_passes_per_step`: number of
    passes whose gradients are summed before they are reduced; `average_aggregated_gradients` divides the sum by that
    number. `op`: Adasum combines the steps of ranks instead of their gradients. For other arguments see
    `DistributedGradientTape`.
    """
    groups = groups_argument(groups, num_groups)
    if is_keras_optimizer(optimizer):
        return DistributedKerasOptimizer(
            optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
            backward_passes_per_step, average_aggregated_gradients, 0, groups, process_set, scale_local_gradients,
        )  # fmt: skip
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise ConfigurationError(
            f"DistributedOptimizer: optimizer is {kind_of(optimizer)}; expected an optimizer of Keras or tf.compat.v1"
        )
    if isinstance(optimizer, WrappedV1Optimizer):
        raise ConfigurationError("optimizer is a DistributedOptimizer already; expected one that is not wrapped")
    if backward_passes_per_step < 1:
        raise ConfigurationError(
            f"DistributedOptimizer: backward_passes_per_step is {backward_passes_per_step}; expected 1 or more"
        )
    options = TensorFlowGradientOptions(
        device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, groups, process_set,
        scale_local_gradients,
    )  # fmt: skip
    reducer = TensorFlowGradientReducer(name or f"Distributed{type(optimizer).__name__}", options.checked())
    common = (optimizer, reducer, backward_passes_per_step, use_locking)
    if reducer.options.op is Adasum:
        return AdasumV1Optimizer(*common)
    if backward_passes_per_step > 1:
        return AccumulatingV1Optimizer(*common, average_aggregated_gradients)
    return DistributedV1Optimizer(*common)
