"""Reduce a model's gradients, as tape and optimizers do: all of them in one call out of the graph."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import tensorflow as tf

from ringtrain.common.util import split_list
from ringtrain.errors import ConfigurationError, kind_of
from ringtrain.negotiation import arrays
from ringtrain.negotiation.arrays import Reduction
from ringtrain.negotiation.queues import name_for
from ringtrain.process_groups.process_sets import ProcessSet, global_process_set, members, trains_alone
from ringtrain.reduction.ops import Adasum, Average, ReduceOp, Sum, chosen_op
from ringtrain.tensorflow.calls import any_rows, host_call
from ringtrain.tensorflow.compression import Compression, Compressor
from ringtrain.tensorflow.members import members_as
from ringtrain.tensorflow.names import name_of_call
from ringtrain.tensorflow.reduce import scaled_slices


@dataclass(frozen=True)
class GradientOptions:
    """How gradients are reduced; the arguments that tape and optimizers have in common."""

    device_dense: str = ""
    device_sparse: str = ""
    compression: type[Compressor] = Compression.none
    sparse_as_dense: bool = False
    op: Any = Average
    gradient_predivide_factor: float = 1.0
    groups: Any = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True

    @classmethod
    def of_arguments(cls, arguments: Mapping[str, Any]) -> "GradientOptions":
        """Return the options among the arguments of a tape or optimizer, with the deprecated `num_groups` as
        `groups`.
        """
        chosen = {option.name: arguments[option.name] for option in fields(cls)}
        if arguments["num_groups"]:
            warnings.warn("num_groups is deprecated; pass groups", DeprecationWarning, stacklevel=3)
            chosen["groups"] = arguments["num_groups"] if chosen["groups"] is None else chosen["groups"]
        return cls(**chosen)

    def checked(self) -> "GradientOptions":
        """Return it with a `ReduceOp`. Raises ConfigurationError for what does not go together."""
        op = chosen_op(self.op)
        if op not in (Average, Sum, Adasum):
            raise ConfigurationError(f"op is {op.value}; expected Average, Sum or Adasum")
        if self.gradient_predivide_factor != 1.0 and op is not Average:
            raise ConfigurationError("gradient_predivide_factor needs op=Average")
        if not (self.groups is None or isinstance(self.groups, list) or self.groups >= 0):
            raise ConfigurationError(
                f"groups is {self.groups!r}; expected a number, 0 or more, or a list of lists"
            )
        return replace(self, op=op)

    @property
    def reduction(self) -> Reduction:
        op: ReduceOp = self.op
        factor = self.gradient_predivide_factor
        if factor == 1.0:
            return Reduction(op.value, self.process_set)
        return Reduction(Sum.value, self.process_set, 1.0 / factor, factor / members(self.process_set))


@dataclass
class GradientReducer:
    """Reduces gradients under names that start with `name`. `local`: ids of variables that stay each rank's
    own.
    """

    name: str
    options: GradientOptions
    _local: set[int] = field(default_factory=set)

    def register_local(self, variable: Any) -> None:
        """Leave the gradient of `variable` out of the reduction."""
        self._local.add(identity(variable))

    def is_local(self, variable: Any) -> bool:
        return identity(variable) in self._local

    @tf.autograph.experimental.do_not_convert
    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients reduced; those that are None stay None, those of local variables are scaled at
        most.
        """
        results = list(grads)
        dense: list[int] = []
        sparse: list[int] = []
        for index, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
            if grad is None:
                continue
            if self.is_local(variable):
                results[index] = self._local_gradient(grad)
            elif isinstance(grad, tf.IndexedSlices) and not self.options.sparse_as_dense:
                sparse.append(index)
            else:
                dense.append(index)
                results[index] = tf.convert_to_tensor(grad)
        if dense or sparse:
            self._reduce_together(results, dense, sparse, self._groups(dense, variables))
        return results

    def _reduce_together(
        self, results: list[Any], dense: list[int], sparse: list[int], groups: list[list[int]]
    ) -> None:
        """Reduce what stands at the indices `dense` and `sparse` of `results`, in one call out of the graph.

        `groups`: positions in `dense` that travel together.
        """
        options, process_set = self.options, self.options.process_set
        name = name_of_call(self.name) or self.name
        small = [options.compression.compress(results[index]) for index in dense]
        slices = [results[index] for index in sparse]
        # Ranks may lack different gradients, and groups of one length then hold different ones.
        lacking = "".join(f"-{index}" for index in range(len(results)) if index not in dense)
        inputs = [tensor for tensor, _ in small] + [part for s in slices for part in (s.values, s.indices)]

        def on_host(*given: Any) -> Any:
            reduced, gathered = list(given[: len(dense)]), given[len(dense) :]
            if trains_alone(process_set):  # in this world; not in the one in which the graph was built
                return given
            how = options.reduction
            begun = []
            for group in groups:
                own = f"{name}.{dense[group[0]]}{lacking if len(group) > 1 else ''}"
                own = name_for("gradients", own, process_set)
                begun.append(arrays.begin(how.request(own), [given[i] for i in group], process_set))
            begun_slices = [
                arrays.begin_allgather(gathered[2 * i : 2 * i + 2], process_set, f"{name}.{index}")
                for i, index in enumerate(sparse)
            ]
            for group, future in zip(groups, begun, strict=True):
                for i, array in zip(group, arrays.result_of(future), strict=True):
                    reduced[i] = array
            return reduced + [array for future in begun_slices for array in arrays.result_of(future)]

        shapes = [t.shape for t, _ in small] + [any_rows(t) for t in inputs[len(dense) :]]
        with tf.device(options.device_dense):
            outputs = host_call(on_host, inputs, [t.dtype for t in inputs], shapes)
            for index, tensor, (_, ctx) in zip(dense, outputs, small, strict=False):
                results[index] = options.compression.decompress(tensor, ctx)
        with tf.device(options.device_sparse):
            for i, index in enumerate(sparse):
                values, indices = outputs[len(dense) + 2 * i : len(dense) + 2 * i + 2]
                how_slices = Reduction("Sum" if options.op is Sum else "Average", process_set)
                results[index] = tf.IndexedSlices(
                    scaled_slices(values, how_slices), indices, slices[i].dense_shape
                )

    def _groups(self, indices: list[int], variables: Sequence[Any]) -> list[list[int]]:
        """Return which of the gradients at `indices` travel together, as positions in `indices`."""
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


def identity(variable: Any) -> int:
    """Return the same number for a Keras variable, the TensorFlow variable in it, and a reference to either."""
    inner = getattr(variable, "_value", None)
    return id(inner if isinstance(inner, tf.Variable) else variable)


def trainable(layers: Collection[Any] | None) -> list[Any]:
    """Return the trainable variables of `layers`. Raises ConfigurationError for what is no layer."""
    found = []
    for layer in [] if layers is None else layers:
        if not hasattr(layer, "trainable_weights"):
            raise ConfigurationError(f"local_layers holds {kind_of(layer)}; expected Keras layers")
        found += list(layer.trainable_weights)
    return found
