"""Keras optimizer whose state is in host memory, divided among the ranks."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from ringtrain import ProcessSet, global_process_set
from ringtrain.adapter import BUCKET_BYTES, Array, HostOptimizerGroups, OnHostOptimizer
from ringtrain.errors import ConfigurationError, counted
from ringtrain.optim import HostOptimizer as ArrayOptimizer
from ringtrain_tensorflow.calls import host_call
from ringtrain_tensorflow.keras.api import IS_KERAS_2, keras
from ringtrain_tensorflow.keras.host_part import KerasHostPart, number_of
from ringtrain_tensorflow.keras.host_rules import check_keras_optimizer
from ringtrain_tensorflow.keras.host_saved import (
    HOW_TO_GATHER,
    UPDATES,
    CheckpointedState,
    store_state,
    stored_state,
    updates_without_state,
)
from ringtrain_tensorflow.keras.host_scale import scaled_keras_optimizer
from ringtrain_tensorflow.keras.optimizer import DistributedKeras2Mixin, DistributedKeras3Mixin, derived
from ringtrain_tensorflow.keras_backend import check_backend
from ringtrain_tensorflow.operation import add_node, out_of_graph_order


class HostKerasMixin(OnHostOptimizer):
    """Methods that `HostOptimizer` adds to the class of a Keras optimizer, as its first base class."""

    _part: KerasHostPart

    @property
    def _groups(self) -> HostOptimizerGroups:  # type: ignore[override]
        return self._part.groups

    _iterations: Any
    _learning_rate: Any
    _is_scaled_around: Any
    _scales_alike: bool

    def state_dict(self, root: int | None = None, error_feedback: bool = True) -> dict[str, Any]:
        """Return weights and state of all ranks, with update count and learning rate. Collective, between updates; see
        `ringtrain.optim.HostOptimizer.state_dict`."""
        whole = self._host.state_dict(root, error_feedback)
        return whole and {**whole, "keras": self._numbers()}

    def shard_dict(self, error_feedback: bool = True) -> dict[str, Any]:
        """Return a copy of this rank's part of the state, for `ShardedCheckpoints`. Not collective."""
        return {**self._host.shard_dict(error_feedback), "keras": self._numbers()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict` or `shard_dict`, saved with any number of ranks. Not collective: every rank
        loads the same state. The optimizer must be built."""
        self._host.load_state_dict({name: value for name, value in state.items() if name != "keras"})
        self._part.write(self._part.weights(), constrained=False)
        numbers = state["keras"]
        self._iterations.assign(int(numbers["iterations"]))
        if "learning_rate" in numbers:
            self._learning_rate.assign(float(numbers["learning_rate"]))

    @property
    def process_set(self) -> ProcessSet:
        """Ranks that train together."""
        return self._part.groups.process_set

    @property
    def counts_skipped_steps(self) -> bool:
        """Whether `iterations` also counts skipped steps, as with a LossScaleOptimizer of Keras 2."""
        return IS_KERAS_2 and self._scales_alike

    def adopt(self) -> None:
        """Use the weights and state that `prepare` received, and assign the weights to the variables. Local."""
        super().adopt()
        self._part.write(self._part.weights(), constrained=False)

    def gather_state(self, root: int | None = 0) -> None:
        """Gather the state of all ranks on rank `root` (None: on all ranks), so that `model.save`, `save_weights`,
        `tf.train.Checkpoint` or callbacks can save it there. Collective, between updates; valid until the next
        update."""
        self._part.gathered = self.state_dict(root)

    def whole_state(self) -> Mapping[str, Any] | None:
        """Return the state of all ranks, {} if there is no state, or None if this rank has only its part. Local."""
        part = self._part
        if part.made is None or not part.has_state:
            return {}
        if part.host.size == 1 or not part.options["sharded"]:
            return self.state_dict()
        return part.gathered if part.gathered.get("updates") == part.host.updates else None

    def begin_from(self, state: Mapping[str, Any]) -> None:
        """Load a saved state, now or when the optimizer is built. Local: every rank must load the same state."""
        if self._part.made is None:
            self._part.pending = state
        else:
            self.load_state_dict(state)

    def scale_velocities(self, factor: float) -> None:
        """Multiply the velocities of SGD with momentum by `factor`, for a callback that changes the learning rate.
        Local: every rank must call it, between updates."""
        if self._part.made is not None:
            self._part.host.scale_state("momentum", factor)

    def register_local_var(self, var: Any) -> NoReturn:
        """Raise ConfigurationError, because a variable that each rank trains alone would need a whole state there."""
        raise ConfigurationError(
            f"HostOptimizer does not support local variables such as {var.name}, which each rank "
            "trains alone; use ringtrain.keras.DistributedOptimizer"
        )

    def _check_scaling(self) -> None:
        if self._is_scaled_around and not self._scales_alike:
            raise ConfigurationError(
                "a LossScaleOptimizer is around the HostOptimizer (compile() puts one there for a model of "
                "mixed_float16), and would skip steps on one rank alone. Put the LossScaleOptimizer inside: "
                "HostOptimizer(keras.mixed_precision.LossScaleOptimizer(optimizer)); or train in mixed_bfloat16"
            )

    def save_own_variables(self, store: Any) -> None:
        """Save the state with the model. If this rank has only its part, warn and save no state."""
        state = self.whole_state()
        if state is None:
            warnings.warn(
                "the model is saved without the state of its HostOptimizer, of which this rank has only a part; "
                f"{HOW_TO_GATHER}",
                stacklevel=2,
            )
            store[UPDATES] = np.array(self.updates)
        elif state:
            store_state(store, state)
        else:
            wrapped: Any = super()
            wrapped.save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Load the state from `store`, which Keras has read. Raises ConfigurationError if a HostOptimizer was saved
        without its state."""
        state = stored_state(store)
        if state is not None:
            self.begin_from(state)
            return
        missing = updates_without_state(store)
        if missing and self._part.made is not None and self._part.has_state:
            raise ConfigurationError(
                f"the file has the weights after {counted(missing, 'update')} and no optimizer state; to save the "
                f"optimizer state as well, {HOW_TO_GATHER}; to load only the weights, load them before compile()"
            )
        wrapped: Any = super()
        wrapped.load_own_variables(store)

    @property
    def _host(self) -> ArrayOptimizer:  # type: ignore[override]  # exists once the optimizer is built
        return self._part.host

    def _numbers(self) -> dict[str, Any]:
        rate, numbers = self._learning_rate, {"iterations": number_of(self._iterations)}
        is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
        return numbers if is_schedule else {**numbers, "learning_rate": number_of(rate)}

    def _trackable_children(self, save_type: str = "checkpoint", **options: Any) -> Any:
        """Return the objects that are saved with this one; a SavedModel, for inference, gets no state."""
        wrapped: Any = super()
        children = dict(wrapped._trackable_children(save_type, **options))
        if save_type != "checkpoint":
            children.pop("host_state", None)
        return children

    def _make(self, variables: Any) -> None:
        """Start to train `variables`, from a state that was restored before, if any."""
        with tf.init_scope():
            keras.optimizers.Optimizer.build(self, variables)
            self._part.make(self, variables)
            if self._part.pending:
                self.load_state_dict(self._part.pending)
                self._part.pending = {}

    @tf.autograph.experimental.do_not_convert
    def _update(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        """Pass each gradient to the host as soon as it is computed, and assign the new weights to all variables."""
        part, everyone = self._part, [*self._part.variables.values()]
        by_name = dict(zip(part.names(variables), grads, strict=True))
        part.check_sparse(by_name)
        given = {name: tf.convert_to_tensor(grad) for name, grad in by_name.items() if grad is not None}
        begin = functools.partial(part.open, self, [name for name in part.variables if name not in given])
        values = [tf.convert_to_tensor(variable) for variable in everyone]
        wrapped: Any = self
        rate, done = tf.convert_to_tensor(wrapped.learning_rate), tf.convert_to_tensor(self._iterations)
        numbers = [tf.cast(rate, tf.float32), tf.cast(done, tf.int64)]
        dtypes, shapes = [value.dtype for value in values], [value.shape for value in values]
        if tf.executing_eagerly():

            def at_once(*arrays: Array) -> Sequence[Array]:
                begin(*arrays[: 2 + len(values)])
                for name, array in zip(given, arrays[2 + len(values) :], strict=True):
                    part.submit(name, array)
                return part.finish()

            part.write(host_call(at_once, [*numbers, *values, *given.values()], dtypes, shapes))
            return
        with tf.device("/CPU:0"):
            with out_of_graph_order():
                begun = add_node(begin, [*numbers, *values], [])
                with tf.control_dependencies([begun]):
                    submitted = [
                        add_node(functools.partial(part.submit, name), [grad], []) for name, grad in given.items()
                    ]
            with tf.control_dependencies([begun, *submitted]):
                updated = host_call(part.finish, [], dtypes, shapes)
        part.write(updated)


class HostKeras3Mixin(HostKerasMixin, DistributedKeras3Mixin):
    """`HostKerasMixin` for optimizers of Keras 3, where all gradients are passed to `apply`."""

    def build(self, variables: Any) -> None:
        """Start to train `variables`; TensorFlow creates no state for them."""
        if not self.built:
            self._make(list(variables))

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        """Update variables by pairs (gradient, variable), like `apply`."""
        pairs = list(grads_and_vars)
        self.apply([grad for grad, _ in pairs], [variable for _, variable in pairs])
        return self._iterations

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Average `grads` over all ranks and update the variables."""
        self._check_scaling()
        given = self._trainable_variables if trainable_variables is None else trainable_variables
        variables = list(given)
        self.build(variables)
        self._update(list(grads), variables)
        self._iterations.assign_add(1)


class HostKeras2Mixin(HostKerasMixin, DistributedKeras2Mixin):
    """`HostKerasMixin` for optimizers of Keras 2, where all gradients are passed to `apply_gradients`."""

    _reduces_first = False

    def build(self, var_list: Any) -> None:
        """Start to train `var_list`; TensorFlow creates no state for it."""
        if not getattr(self, "_built", False):
            self._make(list(var_list))
            self._built = True

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Average the gradients over all ranks and update the variables."""
        self._check_scaling()
        wrapped: Any = self
        wrapped._compute_current_learning_rate()
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        self.build(variables)
        self._update([grad for grad, _ in pairs], variables)
        return self._iterations.assign_add(1)


def HostOptimizer(
    optimizer: Any,
    *,
    process_set: ProcessSet = global_process_set,
    bucket_bytes: int = BUCKET_BYTES,
    sharded: bool = True,
    check_finite: bool = False,
    compression: str | None = None,
    elastic: bool = False,
    redundancy: int = 1,
    sparse_as_dense: bool = False,
) -> Any:
    """Return an optimizer like `optimizer` that averages gradients over all ranks and updates in host memory. Each rank
    stores the state of 1/size of the elements.

        model.compile(ringtrain.keras.HostOptimizer(keras.optimizers.AdamW(1e-3)), loss="mse")

    `optimizer`: SGD, Adam, AdamW or Lamb of Keras 2 or 3 that has made no update. `global_clipnorm`, schedules and
    `exclude_from_weight_decay` work as in Keras; options without a rule (clipnorm, use_ema, amsgrad, ...) are refused.
    Each gradient is sent as soon as it exists, in `fit` and `tf.function`; at the end of a step all weights are
    updated. A LossScaleOptimizer around `optimizer` retains Keras' scale: a step whose gradients are not finite on one
    rank is skipped on all, so gradients are sent when the last one exists. Values that a script sets take effect. Rank
    0's trainable variables are sent to all ranks when the optimizer is built. A variable without a gradient on any rank
    does not change, even with weight decay.

    Each rank has only a part of the state: before a rank saves with Keras or TensorFlow, call `gather_state()` on every
    rank, or use `callbacks.GatherState`. `state_dict()` and `shard_dict()` are for `ringtrain.checkpoint`.
    `process_set`: the ranks that train this model together. `sparse_as_dense`: sum the rows of an embedding's gradient
    for the same word, like `DistributedOptimizer(sparse_as_dense=True)`; Keras' Adam and global clipping process these
    rows one by one, so they refuse such gradients without `sparse_as_dense`. For other arguments see
    `ringtrain.optim.HostOptimizer`. Building it is collective: every rank builds it from the same variables with the
    same arguments, otherwise it raises MismatchError.
    """
    check_backend(keras)
    scaled = optimizer if isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer) else None
    if scaled is not None:
        if elastic:
            raise ConfigurationError(
                "HostOptimizer: elastic=True does not support a LossScaleOptimizer, because new ranks would not "
                "receive its scale; train in mixed_bfloat16, or take ringtrain.keras.DistributedOptimizer"
            )
        optimizer = scaled.inner_optimizer
    check_keras_optimizer(optimizer)
    options = {
        "bucket_bytes": bucket_bytes, "sharded": sharded, "check_finite": check_finite, "compression": compression,
        "elastic": elastic, "redundancy": redundancy, "clip_norm": optimizer.global_clipnorm,
    }  # fmt: skip
    settings: dict[str, Any] = {
        "_part": KerasHostPart(options, HostOptimizerGroups(process_set), sparse_as_dense),
        "_sums": None,
        "_passes": 1,
        "_local_layers": [],
        "_scales_alike": scaled is not None,
    }
    made = derived(optimizer, HostKeras2Mixin if IS_KERAS_2 else HostKeras3Mixin, settings)
    made.host_state = CheckpointedState(made)
    return made if scaled is None else scaled_keras_optimizer(scaled, made, process_set)
