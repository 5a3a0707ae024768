"""Wrappers that reduce gradients over all ranks for optimizers of `tf.compat.v1.train`.

The only order in a graph is that of its data and control dependencies; each step here declares its dependencies.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ringtrain import ProcessSet, global_process_set
from ringtrain.errors import ConfigurationError
from ringtrain_tensorflow.gradients import TensorFlowGradientReducer, identity
from ringtrain_tensorflow.world_ops import is_always_alone, members_as


class WrappedV1Optimizer(tf.compat.v1.train.Optimizer):
    """Base class of wrappers of a `tf.compat.v1.train` optimizer; passes calls for variables and slots (state
    variables) to that optimizer."""

    def __init__(self, optimizer: Any, reducer: TensorFlowGradientReducer, passes: int, use_locking: bool) -> None:
        super().__init__(name=reducer.name, use_locking=use_locking)
        self._optimizer = optimizer
        self._reducer = reducer
        self._passes = passes

    def register_local_var(self, var: Any) -> None:
        """Exclude the gradient of `var` from the reduction."""
        self._reducer.register_local(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return pairs (gradient, variable) of the wrapped optimizer."""
        return list(self._optimizer.compute_gradients(*args, **kwargs))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Apply gradients with the wrapped optimizer."""
        return self._optimizer.apply_gradients(grads_and_vars, global_step=global_step, name=name)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Return a slot (state variable) of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Return the names of the wrapped optimizer's slots, such as momentum."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Return the variables of the wrapped optimizer."""
        return self._optimizer.variables(*args, **kwargs)


class DistributedV1Optimizer(WrappedV1Optimizer):
    """Wrapper whose `compute_gradients` returns gradients reduced over all ranks."""

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return pairs (gradient, variable) of the wrapped optimizer, with gradients reduced over all ranks."""
        pairs = super().compute_gradients(*args, **kwargs)
        return _zipped_v1_gradients(self._reduced([grad for grad, _ in pairs], _v1_variables(pairs)), pairs)

    def _reduced(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        alone = is_always_alone(self._reducer.options.process_set)
        return grads if alone else self._reducer.reduce(grads, variables)


class AccumulatingV1Optimizer(DistributedV1Optimizer):
    """Wrapper that adds up gradients over `passes` runs of the graph, and reduces and applies the sums in the last.

    `average`: whether to divide the sum by `passes`. Sparse gradients are accumulated as dense ones. As in Horovod,
    `global_step` counts every run.
    """

    def __init__(
        self, optimizer: Any, reducer: TensorFlowGradientReducer, passes: int, use_locking: bool, average: bool
    ) -> None:
        if tf.executing_eagerly():
            raise ConfigurationError(
                f"DistributedOptimizer: backward_passes_per_step is {passes} with a tf.compat.v1 optimizer "
                "outside of a graph; expected 1, or a Keras optimizer, or a tf.compat.v1 graph"
            )
        super().__init__(optimizer, reducer, passes, use_locking)
        self._sums = LocalGradientAggregationHelper(passes, self._reduced, True, average, 0, "v1")

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return pairs (sum of gradients since the last update, variable). In the last of `passes` runs, the sums are
        reduced over all ranks."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        return _zipped_v1_gradients(
            self._sums.compute_gradients([grad for grad, _ in pairs], _v1_variables(pairs)), pairs
        )

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Apply the gradients in the last of `passes` runs; in the other runs only count the run."""
        if not self._sums.begun:
            raise ConfigurationError(
                "apply_gradients: with backward_passes_per_step above 1 the gradients must come from this optimizer's "
                "compute_gradients(); call compute_gradients() first, or minimize() instead"
            )
        pairs = list(grads_and_vars)

        def apply() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step)

        return tf.group(self._sums.apply_gradients(apply, None, pairs, global_step=global_step), name=name)


class AdasumV1Optimizer(WrappedV1Optimizer):
    """Wrapper for Adasum: ranks step with their own gradients, and combine weight changes after `passes` runs."""

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Step with local gradients. In the last of `passes` runs, set all ranks' weights to those before the first run
        plus the combined change."""
        pairs = list(grads_and_vars)
        variables = _v1_variables(pairs)  # all: ranks may lack different gradients
        if is_always_alone(self._reducer.options.process_set):
            return super().apply_gradients(pairs, global_step, name)
        first, last = _session_run_of_cycle(self._passes)
        starts = [_start_of_cycle(first, variable) for variable in variables]
        with tf.control_dependencies(starts):
            applied = self._optimizer.apply_gradients(pairs, global_step=global_step)
        with tf.control_dependencies([applied]):
            ends = [tf.identity(variable.read_value()) for variable in variables]

        def combine() -> Any:
            steps = [end - start for end, start in zip(ends, starts, strict=True)]
            combined = self._reducer.reduce(steps, variables, before_update=False)
            values = [start + step for start, step in zip(starts, combined, strict=True)]
            return _after_operations([v.assign(value).op for v, value in zip(variables, values, strict=True)])

        return tf.group(tf.cond(last, combine, lambda: _after_operations([applied])), name=name)


class LocalGradientAggregationHelper:
    """Accumulator of gradients over runs of a `tf.compat.v1` graph, for use inside another optimizer's methods.

    `allreduce_func(grads, vars)` reduces the sums in the last of `backward_passes_per_step` runs;
    `average_aggregated_gradients` divides them by that number. `rank`, `optimizer_type`: accepted for compatibility
    with Horovod.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], list[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: str,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        if backward_passes_per_step < 1:
            raise ConfigurationError(f"backward_passes_per_step is {backward_passes_per_step}; expected 1 or more")
        self.backward_passes_per_step = backward_passes_per_step
        self.name = name
        self._reduce = allreduce_func
        self._sparse_as_dense = sparse_as_dense
        self._factor = 1.0 / backward_passes_per_step if average_aggregated_gradients else 1.0
        self._process_set = process_set
        self._scale_local = scale_local_gradients
        self._local: set[int] = set()
        self._last: Any = None

    @property
    def begun(self) -> bool:
        """Whether `compute_gradients` was called."""
        return self._last is not None

    def register_local_var(self, var: Any) -> None:
        """Exclude the gradient of `var` from the reduction."""
        self._local.add(identity(var))

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Return the sums of gradients since the last update; in the last run reduced by `allreduce_func`."""
        present = [index for index, grad in enumerate(grads) if grad is not None]
        if not self._sparse_as_dense and any(isinstance(grads[i], tf.IndexedSlices) for i in present):
            raise ConfigurationError(
                "a gradient is an IndexedSlices, which backward_passes_per_step above 1 does not "
                "support; pass sparse_as_dense=True"
            )
        variables = [vars[index] for index in present]
        first, self._last = _session_run_of_cycle(self.backward_passes_per_step)
        sums = [_sum_of_cycle(first, grads[index], vars[index]) for index in present]
        totals = tf.cond(
            self._last, lambda: self._totals(sums, variables), lambda: [tf.identity(total) for total in sums]
        )
        results: list[Any] = [None] * len(grads)
        for index, total in zip(present, totals if isinstance(totals, list | tuple) else [totals], strict=True):
            results[index] = total
        return results

    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Call `apply_grads_closure` in the last run of a cycle; in others only increase `optimizer.iterations` and
        `global_step`."""
        grads = [grad for grad, _ in args[0] if grad is not None]
        counts = [getattr(optimizer, "iterations", None), kwargs.get("global_step")]

        def count() -> Any:
            return _after_operations([tf.compat.v1.assign_add(c, 1).op for c in counts if c is not None])

        with tf.control_dependencies(grads):
            return tf.cond(self._last, lambda: _after_operations([apply_grads_closure()]), count)

    def _totals(self, sums: list[Any], variables: list[Any]) -> list[Any]:
        results = [total * tf.cast(self._factor, total.dtype) for total in sums]
        shared = [i for i, variable in enumerate(variables) if identity(variable) not in self._local]
        reduced = self._reduce([results[i] for i in shared], [variables[i] for i in shared])
        for i in set(range(len(sums))) - set(shared):
            if self._scale_local:
                results[i] = results[i] / members_as(self._process_set, results[i].dtype)
        for i, grad in zip(shared, reduced, strict=True):
            results[i] = grad
        return results


def _session_run_of_cycle(passes: int) -> tuple[Any, Any]:
    """Return two tensors: whether this run of the graph is the first of `passes` runs, and whether it is the last."""
    count = tf.compat.v1.Variable(0, trainable=False, dtype=tf.int64, name="passes", use_resource=True)
    before = tf.identity(count.read_value())
    with tf.control_dependencies([before]):
        after = tf.identity(count.assign_add(1))
    return tf.equal(before % passes, 0), tf.equal(after % passes, 0)


def _sum_of_cycle(first: Any, grad: Any, variable: Any) -> Any:
    """Return the sum of the gradients of `variable` since the last update. `first`: whether a new sum begins."""
    kept = _kept_variable(variable, "sum")
    added = tf.convert_to_tensor(grad)
    return tf.identity(kept.assign(tf.where(first, added, kept.read_value() + added)))


def _start_of_cycle(first: Any, variable: Any) -> Any:
    """Return the value of `variable` after the last update. `first`: whether this is the first run of the graph since
    that update."""
    kept = _kept_variable(variable, "start")
    return tf.identity(kept.assign(tf.where(first, variable.read_value(), kept.read_value())))


def _kept_variable(variable: Any, what: str) -> Any:
    zeros = tf.zeros(variable.shape, variable.dtype.base_dtype)
    name = f"{variable.op.name}/{what}"
    return tf.compat.v1.Variable(zeros, trainable=False, name=name, use_resource=True)


def _after_operations(operations: Sequence[Any]) -> Any:
    with tf.control_dependencies(operations):
        return tf.constant(True)


def _v1_variables(pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
    return [variable for _, variable in pairs]


def _zipped_v1_gradients(grads: Sequence[Any], pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return list(zip(grads, _v1_variables(pairs), strict=True))
