"""Reduction of a model's gradients for tapes and optimizers. Each gradient is sent as soon as it is computed."""

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from ringtrain import Adasum, Average, ProcessSet, ReduceOp, Sum, global_process_set
from ringtrain.adapter import Array, NamedCollective, NamedReduction, members, trains_alone
from ringtrain.common.util import split_list
from ringtrain.errors import ConfigurationError, kind_of
from ringtrain_tensorflow.calls import any_rows
from ringtrain_tensorflow.compression import Compression, Compressor
from ringtrain_tensorflow.names import name_of_call
from ringtrain_tensorflow.presence import completed_gradients
from ringtrain_tensorflow.reduce import scaled_slices
from ringtrain_tensorflow.replicas import comparing
from ringtrain_tensorflow.streams import BegunGraphPart, FinishedGraphPart, GraphPartSurroundings, streamed_call
from ringtrain_tensorflow.world_ops import members_as


@dataclass(frozen=True)
class TensorFlowGradientOptions:
    """Options for the reduction of gradients, which tapes and optimizers have in common."""

    device_dense: str = ""
    device_sparse: str = ""
    compression: type[Compressor] = Compression.none
    sparse_as_dense: bool = False
    op: Any = Average
    gradient_predivide_factor: float = 1.0
    groups: Any = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True

    def checked(self) -> "TensorFlowGradientOptions":
        """Return the options with `op` as a ReduceOp. Raises ConfigurationError for incompatible options."""
        op = ReduceOp.of(self.op)
        if op not in (Average, Sum, Adasum):
            raise ConfigurationError(f"op is {op.value}; expected Average, Sum or Adasum")
        if self.gradient_predivide_factor != 1.0 and op is not Average:
            raise ConfigurationError("gradient_predivide_factor needs op=Average")
        if not (self.groups is None or isinstance(self.groups, list) or self.groups >= 0):
            raise ConfigurationError(f"groups is {self.groups!r}; expected a number, 0 or more, or a list of lists")
        return replace(self, op=op)

    @property
    def reduction(self) -> NamedReduction:
        op: ReduceOp = self.op
        factor = self.gradient_predivide_factor
        if factor == 1.0:
            return NamedReduction(op.value, self.process_set)
        return NamedReduction(Sum.value, self.process_set, 1.0 / factor, factor / members(self.process_set))


@dataclass
class TensorFlowGradientReducer:
    """Reducer of gradients over a process set, except those of variables that each rank trains alone (`_local`).

    `name`: prefix of the collectives' names.
    """

    name: str
    options: TensorFlowGradientOptions
    _local: set[int] = field(default_factory=set)

    def register_local(self, variable: Any) -> None:
        """Exclude the gradient of `variable` from the reduction."""
        self._local.add(identity(variable))

    def is_local(self, variable: Any) -> bool:
        return identity(variable) in self._local

    @tf.autograph.experimental.do_not_convert
    def reduce(
        self, grads: Sequence[Any], variables: Sequence[Any], before_update: bool = True, rate: Any = None
    ) -> list[Any]:
        """Return `grads` reduced over all ranks. Gradients of local variables are not reduced, only scaled.

        `before_update`: whether ranks still have the same variables. If so, they compare the variables and `rate` at
        intervals; StateCorrupt names ranks that differ. A gradient that is None counts as zeros if another rank has
        one, and stays None if no rank has one.
        """
        name = name_of_call(self.name) or self.name
        shared = [index for index, variable in enumerate(variables) if not self.is_local(variable)]
        results = list(grads)
        for index in set(range(len(results))) - set(shared):
            if results[index] is not None:
                results[index] = self._local_gradient(results[index])
        own, of = [grads[index] for index in shared], [variables[index] for index in shared]
        for index, grad in zip(shared, completed_gradients(name, own, of, self.options.process_set), strict=True):
            results[index] = grad
        present = [index for index in shared if results[index] is not None]
        slices = not self.options.sparse_as_dense
        sparse = [i for i in present if slices and isinstance(results[i], tf.IndexedSlices)]
        dense = [index for index in present if index not in sparse]
        for index in dense:
            results[index] = tf.convert_to_tensor(results[index])
        if present:
            around = comparing(name, of if before_update else [], rate, self.options.process_set)
            self._reduce_together(name, results, (dense, sparse), self._groups(dense, variables), around)
        return results

    def _reduce_together(
        self,
        name: str,
        results: list[Any],
        kinds: tuple[list[int], list[int]],
        groups: list[list[int]],
        around: GraphPartSurroundings,
    ) -> None:
        """Replace gradients in `results` by reduced ones: the dense and the sparse ones, at the indices in the pair
        `kinds`. A group of dense gradients, or one sparse gradient, is sent as soon as it is computed.

        `groups`: positions among the dense ones that are reduced together. `around`: see `streamed_call`.
        """
        (dense, sparse), options, process_set = kinds, self.options, self.options.process_set
        small = [options.compression.compress(results[index]) for index in dense]
        slices = [results[index] for index in sparse]
        # Ranks may lack different gradients; groups of equal length then have different members.
        lacking = "".join(f"-{index}" for index in range(len(results)) if index not in dense)
        parts = [[small[i][0] for i in group] for group in groups] + [[s.values, s.indices] for s in slices]

        def begin(number: int, given: Sequence[Array]) -> BegunGraphPart:
            # in the current world, which may differ from that of the graph's construction
            if trains_alone(process_set):
                return FinishedGraphPart(given)
            if number >= len(groups):
                own = f"{name}.{sparse[number - len(groups)]}"
                return NamedCollective.allgather(process_set, own).begin(given)
            group = groups[number]
            own = f"{name}.{dense[group[0]]}{lacking if len(group) > 1 else ''}"
            return NamedCollective.allreduce(options.reduction, own, "gradients").begin(given)

        flat = [tensor for part in parts for tensor in part]
        shapes = [t.shape for t in flat[: len(dense)]] + [any_rows(t) for t in flat[len(dense) :]]
        with tf.device(options.device_dense):
            outputs = streamed_call(name, begin, parts, ([t.dtype for t in flat], shapes), around)
            for position, tensor in zip((i for group in groups for i in group), outputs, strict=False):
                results[dense[position]] = options.compression.decompress(tensor, small[position][1])
        with tf.device(options.device_sparse):
            for i, index in enumerate(sparse):
                values, indices = outputs[len(dense) + 2 * i : len(dense) + 2 * i + 2]
                how_slices = NamedReduction("Sum" if options.op is Sum else "Average", process_set)
                results[index] = tf.IndexedSlices(scaled_slices(values, how_slices), indices, slices[i].dense_shape)

    def _groups(self, indices: list[int], variables: Sequence[Any]) -> list[list[int]]:
        """Divide the gradients at `indices` into groups that are reduced together; return each group as positions in
        `indices`."""
        groups = self.options.groups
        everyone = list(range(len(indices)))
        if isinstance(groups, list):
            of = {identity(v): number for number, group in enumerate(groups) for v in group}
            keys = [of.get(identity(variables[index]), -1 - index) for index in indices]
            return [[i for i in everyone if keys[i] == key] for key in dict.fromkeys(keys)]
        if groups:
            return [part for part in split_list(everyone, groups) if part]
        return [[i] for i in everyone]

    def _local_gradient(self, grad: Any) -> Any:
        if not self.options.scale_local_gradients:
            return grad
        size = members_as(self.options.process_set, grad.dtype)
        if isinstance(grad, tf.IndexedSlices):
            return tf.IndexedSlices(grad.values / size, grad.indices, grad.dense_shape)
        return grad / size


def groups_argument(groups: Any, num_groups: int) -> Any:
    """Return `groups`, or the value of the deprecated argument `num_groups` if `groups` is None."""
    if num_groups:
        warnings.warn("num_groups is deprecated; pass groups", DeprecationWarning, stacklevel=3)
    return num_groups if num_groups and groups is None else groups


def identity(variable: Any) -> int:
    """Return a number that identifies a variable: equal for a Keras variable and its TensorFlow variable."""
    inner = getattr(variable, "_value", None)
    return id(inner if isinstance(inner, tf.Variable) else variable)


def trainable(layers: Collection[Any] | None) -> list[Any]:
    """Return the trainable variables of `layers`. Raises ConfigurationError for an object that is not a layer."""
    found = []
    for layer in [] if layers is None else layers:
        if not hasattr(layer, "trainable_weights"):
            raise ConfigurationError(f"local_layers contains {kind_of(layer)}; expected Keras layers")
        found += list(layer.trainable_weights)
    return found
