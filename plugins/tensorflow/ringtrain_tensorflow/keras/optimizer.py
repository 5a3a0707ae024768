"""`DistributedOptimizer` for Keras: an optimizer that applies gradients reduced over all ranks."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import tensorflow as tf

from ringtrain import Adasum, Average, ProcessSet, global_process_set
from ringtrain.errors import ConfigurationError, kind_of
from ringtrain.step_time import UPDATE
from ringtrain_tensorflow.compression import Compression, Compressor
from ringtrain_tensorflow.gradients import (
    TensorFlowGradientOptions,
    TensorFlowGradientReducer,
    groups_argument,
    trainable,
)
from ringtrain_tensorflow.keras.api import IS_KERAS_2, is_keras_optimizer, keras
from ringtrain_tensorflow.keras_backend import check_backend
from ringtrain_tensorflow.tape import tape_layers_of
from ringtrain_tensorflow.world_ops import is_always_alone


class DistributedKerasMixin:
    """Methods that `DistributedOptimizer` adds to the class of a Keras optimizer, for Keras 2 and 3."""

    _reducer: TensorFlowGradientReducer
    _passes: int
    _average_passes: bool
    _local_layers: list[Any]
    _sums: KerasGradientAccumulator | None
    _reduces_first = True  # gradients, before an update
    iterations: Any

    def register_local_var(self, var: Any) -> None:
        """Exclude the gradient of `var` from the reduction."""
        self._reducer.register_local(var)

    def begin_passes(self) -> None:
        """Discard the gradients accumulated since the last update."""
        if self._sums is not None:
            self._sums.clear()

    @property
    def _is_scaled_around(self) -> bool:
        """Whether Keras has put a LossScaleOptimizer around this optimizer."""
        raise NotImplementedError

    def _check_scaling(self) -> None:
        """Raise ConfigurationError if a loss scale on this rank alone would decide whether a step is skipped."""
        if self._is_scaled_around and not is_always_alone(self._reducer.options.process_set):
            no_scaling = "" if IS_KERAS_2 else "compile with auto_scale_loss=False, or "
            raise ConfigurationError(
                "a LossScaleOptimizer is around the DistributedOptimizer (compile() puts one there "
                "for a model of mixed_float16). A rank whose gradients overflow would skip the step "
                "alone, and the other ranks would mix two steps. Put the LossScaleOptimizer inside: "
                "DistributedOptimizer(keras.mixed_precision.LossScaleOptimizer(optimizer)); or "
                f"{no_scaling}train in mixed_bfloat16"
            )

    def _update_with(self, grads: list[Any], variables: Sequence[Any], apply: Callable[[list[Any]], Any]) -> Any:
        """Reduce `grads`, then return the result of `apply` with them. With several backward passes per update,
        accumulate until the last one.

        `apply` may call methods of this optimizer defined by Keras or a user's class: they do not reduce again.
        """

        def apply_once(ready: list[Any]) -> Any:
            self.__dict__["_is_reduced"] = True
            try:
                return apply(ready)
            finally:
                self.__dict__["_is_reduced"] = False

        def step(total: list[Any]) -> Any:
            return self._step(total, variables, apply_once)

        return step(grads) if self._passes == 1 else self._add(grads, variables, step)

    def _register_local_layers(self) -> None:
        for variable in trainable(self._local_layers):  # known once a layer is built
            self._reducer.register_local(variable)

    def _step(self, grads: list[Any], variables: Sequence[Any], apply: Callable[[list[Any]], Any]) -> Any:
        """Reduce `grads`, then `apply` them."""
        reduced = self._reduced(grads, variables)
        # The time of a graph is not measured: its update does not run in Python.
        with UPDATE if tf.executing_eagerly() else contextlib.nullcontext():
            return apply(reduced)

    def _reduced(self, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
        """Return `grads` reduced over the process set, except those of local variables."""
        self._register_local_layers()
        if is_always_alone(self._reducer.options.process_set):
            # A single rank must train like many: repeated rows of an embedding are summed before the update.
            dense = self._reducer.options.sparse_as_dense
            return [tf.convert_to_tensor(grad) if dense and grad is not None else grad for grad in grads]
        return self._reducer.reduce(grads, variables, rate=getattr(self, "_learning_rate", None))

    def _add(self, grads: list[Any], variables: Sequence[Any], apply: Callable[[list[Any]], Any]) -> Any:
        """Add `grads` to the sums of earlier passes; in the last pass call `apply` with the sums."""
        if self._sums is None:
            # Bypasses Keras' tracking: the sums are not saved with the model.
            self.__dict__["_sums"] = KerasGradientAccumulator(variables, self._passes, self._average_passes)
        return self.__dict__["_sums"].add(grads, variables, apply, self.iterations)

    def _combine_steps(self, variables: Sequence[Any], before: Sequence[Any]) -> list[Any]:
        """Combine the ranks' weight changes since `before` by Adasum, assign `before` plus the result, and return the
        assignments."""
        self._register_local_layers()
        steps = [tf.convert_to_tensor(v) - start for v, start in zip(variables, before, strict=True)]
        combined = self._reducer.reduce(steps, variables, before_update=False)
        ends = zip(variables, before, combined, strict=True)
        return [variable.assign(start + step) for variable, start, step in ends]


class DistributedKeras3Mixin(DistributedKerasMixin):
    """`DistributedKerasMixin` for Keras 3, where all gradients are passed to `apply_gradients` or `apply`."""

    _trainable_variables: Any
    _iterations: Any
    _model_variables_moving_average: Any
    built: bool

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "loss_scale_factor" and value is None and name in self.__dict__:
            # Only trace of Keras' LossScaleOptimizer in the optimizer around which it is put.
            self.__dict__["_scale_was_taken_away"] = True
        super().__setattr__(name, value)

    @property
    def _is_scaled_around(self) -> bool:
        return bool(self.__dict__.get("_scale_was_taken_away"))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduce the gradients, then pass them to the optimizer's own `apply_gradients`."""
        pairs, wrapped = list(grads_and_vars), cast("Any", super())
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]

        def apply(ready: list[Any]) -> Any:
            return wrapped.apply_gradients(zip(ready, variables, strict=True), *args, **kwargs)

        self._apply_reduced(grads, variables, apply)
        return self._iterations

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Reduce `grads`, then apply them."""
        variables = list(trainable_variables if trainable_variables is not None else self._trainable_variables)
        wrapped: Any = super()
        self._apply_reduced(list(grads), variables, lambda ready: wrapped.apply(ready, variables))

    def _apply_reduced(self, grads: list[Any], variables: list[Any], apply: Callable[[list[Any]], Any]) -> None:
        if self.__dict__.get("_is_reduced"):
            apply(grads)
            return
        self._check_scaling()
        if self._passes > 1 and not self.built:
            cast("Any", super()).build(variables)
        self._update_with(grads, variables, apply)

    def _update_model_variables_moving_average(self, trainable_variables: Any) -> None:
        """Update the moving average of the weights, and initialize it at the first update. Keras recognizes that update
        by a count of 0, but here each pass increases the count."""
        if self._passes > 1:
            is_first = tf.convert_to_tensor(self.iterations) < self._passes
            for variable, average in zip(trainable_variables, self._model_variables_moving_average, strict=True):
                if average is not None:
                    average.assign(tf.where(is_first, variable, average))
        wrapped: Any = super()
        wrapped._update_model_variables_moving_average(trainable_variables)


class KerasGradientAccumulator:
    """Accumulator of gradients over several backward passes. The sums are variables, so it works in graphs."""

    def __init__(self, variables: Sequence[Any], passes: int, average: bool) -> None:
        self._passes, self._average = passes, average
        self._variables = list(variables)
        self._present: list[int] | None = None  # of the first pass
        with tf.init_scope():
            self._count = tf.Variable(0, trainable=False, dtype=tf.int64)
            self._sums = [tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False) for v in variables]

    def clear(self) -> None:
        """Reset the sums."""
        self._present = None
        self._count.assign(0)
        for total in self._sums:
            total.assign(tf.zeros_like(total))

    def add(self, grads: list[Any], variables: Sequence[Any], at_last: Any, iterations: Any) -> Any:
        """Add `grads` to the sums; in the last pass call `at_last` with the sums or means, and reset them.

        `iterations`: the optimizer's count, which schedules use. As in Horovod every pass is counted; `at_last` itself
        counts the last pass. Raises ConfigurationError if a pass has gradients of other variables than the first one.
        """
        present = [index for index, grad in enumerate(grads) if grad is not None]
        same = len(variables) == len(self._variables) and all(map(operator.is_, variables, self._variables))
        if not same or self._present not in (None, present):
            raise ConfigurationError(
                f"backward_passes_per_step is {self._passes}, but a pass has gradients of other variables than the "
                "first pass; pass the same variables each time, with zeros for a variable without a gradient"
            )
        self._present = present
        for index in present:
            self._sums[index].assign_add(tf.convert_to_tensor(grads[index]))
        self._count.assign_add(1)

        def last() -> Any:
            factor = 1.0 / self._passes if self._average else 1.0
            totals: list[Any] = [None] * len(grads)
            for index in present:
                totals[index] = self._sums[index] * tf.cast(factor, self._sums[index].dtype)
            at_last(totals)
            for index in present:
                self._sums[index].assign(tf.zeros_like(self._sums[index]))
            return tf.constant(True)

        def between() -> Any:
            iterations.assign_add(1)
            return tf.constant(False)

        return tf.cond(self._count % self._passes == 0, last, between)


class AdasumKeras3Mixin(DistributedKeras3Mixin):
    """`DistributedKeras3Mixin` for Adasum: each rank steps with local gradients, then ranks combine the changes."""

    def _step(self, grads: list[Any], variables: Sequence[Any], apply: Callable[[list[Any]], Any]) -> Any:
        """Step with local gradients, then set all ranks' weights to the old ones plus the combined change."""
        before = [tf.identity(tf.convert_to_tensor(variable)) for variable in variables]
        apply(grads)
        if not is_always_alone(self._reducer.options.process_set):
            self._combine_steps(variables, before)


class DistributedKeras2Mixin(DistributedKerasMixin):
    """`DistributedKerasMixin` for Keras 2, where all gradients are passed to `apply_gradients`."""

    @property
    def _is_scaled_around(self) -> bool:
        return bool(getattr(self, "_is_wrapped_by_loss_scale_optimizer", False))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Apply the gradients, after a reduction unless `compute_gradients` has reduced them."""
        self._check_scaling()
        pairs = list(grads_and_vars)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        wrapped: Any = super()

        def apply(ready: list[Any]) -> Any:
            return wrapped.apply_gradients(zip(ready, variables, strict=True), *args, **kwargs)

        computed, self.__dict__["_computed"] = self.__dict__.get("_computed", []), []
        if computed and len(computed) == len(grads) and all(map(operator.is_, computed, grads)):
            return apply(grads)
        if self._passes > 1:
            with tf.init_scope():  # variables cannot be created in a branch
                make = wrapped._create_all_weights if hasattr(wrapped, "_create_all_weights") else wrapped.build
                make(variables)
        return self._update_with(grads, variables, apply)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Return pairs (reduced gradient, variable), as in Horovod; `apply_gradients` then does not reduce them again.
        With several backward passes per update, or Adasum, they are not reduced here."""
        wrapped: Any = super()
        pairs = list(wrapped.compute_gradients(*args, **kwargs))
        if self._passes > 1 or not self._reduces_first:
            return pairs
        variables = [variable for _, variable in pairs]
        self.__dict__["_computed"] = self._reduced([grad for grad, _ in pairs], variables)
        return list(zip(self.__dict__["_computed"], variables, strict=True))


class AdasumKeras2Mixin(DistributedKeras2Mixin):
    """`DistributedKeras2Mixin` for Adasum, like `AdasumKeras3Mixin`."""

    _reduces_first = False

    def _step(self, grads: list[Any], variables: Sequence[Any], apply: Callable[[list[Any]], Any]) -> Any:
        """Step with local gradients, then set all ranks' weights to the old ones plus the combined change."""
        before = [tf.identity(variable) for variable in variables]
        applied = apply(grads)
        if is_always_alone(self._reducer.options.process_set):
            return applied
        with tf.control_dependencies([] if applied is None or tf.executing_eagerly() else [applied]):
            assigned = self._combine_steps(variables, before)
        return applied if tf.executing_eagerly() else tf.group(*assigned)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return an optimizer like `optimizer` that reduces gradients over all ranks before it applies them.

    The result is of a class derived from the optimizer's own, under the same name, and shares its state: Keras alone
    can load a model that was saved with it. XLA cannot compile it: on a GPU pass `jit_compile=False` to
    `model.compile`.

    `name`: accepted for compatibility with Horovod. `backward_passes_per_step`: number of passes whose gradients are
    summed before they are reduced and applied; `average_aggregated_gradients` divides the sum by that number. For other
    arguments see `ringtrain.tensorflow.DistributedGradientTape`.
    """
    groups = groups_argument(groups, num_groups)
    return PartialDistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
        backward_passes_per_step, average_aggregated_gradients, groups, process_set, None, scale_local_gradients,
    )  # fmt: skip


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Collection[Any] | None = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a `DistributedOptimizer` that reduces all gradients except those of `local_layers`.

    For other arguments see `DistributedOptimizer`.
    """
    check_backend(keras)
    if not is_keras_optimizer(optimizer):
        raise ConfigurationError(f"optimizer is {kind_of(optimizer)}; expected a Keras optimizer")
    if isinstance(optimizer, DistributedKerasMixin):
        raise ConfigurationError("optimizer is a DistributedOptimizer already; expected one that is not wrapped")
    if backward_passes_per_step < 1:
        raise ConfigurationError(f"backward_passes_per_step is {backward_passes_per_step}; expected 1 or more")
    layers = tape_layers_of(local_layers)
    trainable(layers)
    checked = TensorFlowGradientOptions(
        device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, groups, process_set,
        scale_local_gradients,
    ).checked()  # fmt: skip
    settings = {
        "_reducer": TensorFlowGradientReducer(f"Distributed{type(optimizer).__name__}", checked),
        "_passes": backward_passes_per_step,
        "_average_passes": average_aggregated_gradients,
        "_local_layers": layers,
        "_sums": None,
    }
    return derived(optimizer, _mixin(checked), settings)


def _mixin(options: TensorFlowGradientOptions) -> type:
    if IS_KERAS_2:
        return AdasumKeras2Mixin if options.op is Adasum else DistributedKeras2Mixin
    return AdasumKeras3Mixin if options.op is Adasum else DistributedKeras3Mixin


def derived(optimizer: Any, mixin: type, settings: dict[str, Any]) -> Any:
    """Return a copy of `optimizer` whose class has `mixin` as its first base. The copy shares all attributes with
    `optimizer`.

    `settings`: class attributes. They bypass Keras' tracking, so that they are not saved with the model, and are also
    in objects that `from_config` creates.
    """
    kind = type(optimizer)
    names = {"__doc__": kind.__doc__, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    names |= settings
    derived: Any = type(kind.__name__, (mixin, kind), names)
    wrapped = object.__new__(derived)
    wrapped.__dict__.update(vars(optimizer))
    return wrapped
