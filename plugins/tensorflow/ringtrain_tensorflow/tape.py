"""`DistributedGradientTape`: a gradient tape that reduces its gradients over all ranks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from ringtrain import Average, ProcessSet, global_process_set
from ringtrain_tensorflow.compression import Compression, Compressor
from ringtrain_tensorflow.gradients import (
    TensorFlowGradientOptions,
    TensorFlowGradientReducer,
    groups_argument,
    trainable,
)
from ringtrain_tensorflow.world_ops import is_always_alone


class DistributedTensorFlowTape(tf.GradientTape):
    """Class of the tape that `DistributedGradientTape` returns: the given tape, with gradients reduced."""

    _reducer: TensorFlowGradientReducer
    _local_layers: list[Any]

    def register_local_source(self, source: Any) -> None:
        """Exclude the gradient of `source` (a variable) from the reduction."""
        self._reducer.register_local(source)

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False) -> Any:
        """Return the gradients of `target`, reduced over the process set, in the structure of `sources`."""
        flat = self._reduced(target, sources, output_gradients)
        return tf.nest.pack_sequence_as(sources, flat)

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Return two lists of pairs (source, gradient): local sources, and others with reduced gradients."""
        flat = self._reduced(target, sources, output_gradients)
        named = list(zip(tf.nest.flatten(sources), flat, strict=True))
        local = [pair for pair in named if self._reducer.is_local(pair[0])]
        return local, [pair for pair in named if not self._reducer.is_local(pair[0])]

    def _reduced(self, target: Any, sources: Any, output_gradients: Any) -> list[Any]:
        for variable in trainable(self._local_layers):
            self._reducer.register_local(variable)
        flat = tf.nest.flatten(sources)
        grads = super().gradient(target, flat, output_gradients)
        alone = is_always_alone(self._reducer.options.process_set)
        return list(grads) if alone else self._reducer.reduce(grads, flat)


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a tape with the recording of `gradtape` whose `gradient()` reduces over the process set.

    `compression`: compression of gradients. `sparse_as_dense`: whether to reduce IndexedSlices as tensors. `op`:
    Average, Sum or Adasum. `gradient_predivide_factor`: divisor before the sum; with Average, the sum is divided by
    size / factor. `groups`: a number of groups, or lists of variables that are reduced together; `num_groups` is its
    deprecated form. `scale_local_gradients`: whether to divide gradients of local sources by the number of ranks.
    """
    groups = groups_argument(groups, num_groups)
    return PartialDistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, 0, groups,
        process_set, None, scale_local_gradients,
    )  # fmt: skip


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Collection[Any] | None = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a `DistributedGradientTape` that does not reduce the gradients of `local_layers`.

    For other arguments see `DistributedGradientTape`.
    """
    options = TensorFlowGradientOptions(
        device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor,
        groups_argument(groups, num_groups), process_set, scale_local_gradients,
    )  # fmt: skip
    tape = DistributedTensorFlowTape.__new__(DistributedTensorFlowTape)
    tape.__dict__.update(gradtape.__dict__)
    tape._reducer = TensorFlowGradientReducer("DistributedGradientTape", options.checked())
    tape._local_layers = tape_layers_of(local_layers)
    trainable(tape._local_layers)
    return tape


def tape_layers_of(layers: Any) -> list[Any]:
    """Return `layers` as a list; a single layer becomes a list of one."""
    if layers is None:
        return []
    return [layers] if hasattr(layers, "trainable_weights") else list(layers)
