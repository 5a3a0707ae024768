"""`DistributedOptimizer` with its arguments in the order of `horovod.keras`, not of `horovod.tensorflow.keras`."""

from __future__ import annotations

from typing import Any

from ringtrain import Average, ProcessSet, global_process_set
from ringtrain_tensorflow.compression import Compression, Compressor
from ringtrain_tensorflow.keras import optimizer as keras_optimizer


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    num_groups: int = 0,
    groups: Any = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return `optimizer` wrapped by `ringtrain.tensorflow.keras.DistributedOptimizer`.

    That function has the same arguments in another order.
    """
    return keras_optimizer.DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
        backward_passes_per_step, average_aggregated_gradients, num_groups, groups, process_set, scale_local_gradients,
    )  # fmt: skip
