"""Loss scaling for a Keras host optimizer, where all ranks apply or skip a step together."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from ringtrain import Min, ProcessSet
from ringtrain_tensorflow.keras.api import IS_KERAS_2
from ringtrain_tensorflow.keras.host_part import number_of
from ringtrain_tensorflow.keras.optimizer import derived
from ringtrain_tensorflow.reduce import allreduce
from ringtrain_tensorflow.world_ops import is_always_alone


class HostKerasScaleMixin:
    """Methods that `HostOptimizer` adds to the class of a LossScaleOptimizer around a host optimizer.

    The scale is Keras' own. If a rank's gradients are not finite, those of the others are replaced by NaN: then Keras
    skips the step and halves the scale on every rank.
    """

    _process_set: ProcessSet

    def state_dict(self, root: int | None = None, error_feedback: bool = True) -> dict[str, Any]:
        """Return the `HostOptimizer`'s state of all ranks, and the loss scale; only on `root` if given. Collective."""
        whole = self._inner.state_dict(root, error_feedback)
        return whole and {**whole, "loss_scale": self._scale()}

    def shard_dict(self, error_feedback: bool = True) -> dict[str, Any]:
        """Return a copy of this rank's part of the `HostOptimizer`'s state, and the loss scale. Not collective."""
        return {**self._inner.shard_dict(error_feedback), "loss_scale": self._scale()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of the `HostOptimizer`, and the loss scale if the state contains it."""
        self._inner.load_state_dict({name: value for name, value in state.items() if name != "loss_scale"})
        for variable, value in zip(self._scale_variables(), state.get("loss_scale", ()), strict=False):
            variable.assign(value)

    @property
    def updates(self) -> int:
        """Number of updates."""
        return int(self._inner.updates)

    @property
    def state_bytes(self) -> int:
        """Size in bytes of the optimizer state that this rank stores in host memory."""
        return int(self._inner.state_bytes)

    @property
    def _inner(self) -> Any:
        wrapped: Any = self
        return wrapped.inner_optimizer

    def _scale(self) -> list[float]:
        return [number_of(variable) for variable in self._scale_variables()]

    def _scale_variables(self) -> list[Any]:
        """Return two variables: the scale, and the number of steps since it changed; none for a constant scale."""
        wrapped: Any = self
        if not IS_KERAS_2:
            return [wrapped.dynamic_scale, wrapped.step_counter]
        scale = getattr(wrapped, "_loss_scale", None)  # Keras 2 exposes only its value
        return [scale.current_loss_scale, wrapped.dynamic_counter] if scale and wrapped.dynamic else []

    def _alike(self, grads: Sequence[Any]) -> list[Any]:
        """Return `grads`, on all ranks with NaN if the gradients of any rank are not finite. Collective."""
        found = list(grads)
        if is_always_alone(self._process_set):
            return found
        given = [index for index, grad in enumerate(found) if grad is not None]
        finite = [tf.reduce_all(tf.math.is_finite(_keras_gradient_values(found[index]))) for index in given]
        mine = tf.cast(tf.reduce_all(finite) if finite else True, tf.float32)
        everywhere = allreduce(mine, op=Min, name="HostOptimizer.finite", process_set=self._process_set)
        for index in given[:1]:
            grad = tf.convert_to_tensor(found[index])
            found[index] = tf.where(everywhere > 0, grad, tf.constant(float("nan"), grad.dtype))
        return found


class HostKeras3ScaleMixin(HostKerasScaleMixin):
    """`HostKerasScaleMixin` for Keras 3, where all gradients are passed to `apply`."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Update with `grads`, which contain the loss scale, if they are finite on all ranks. Collective."""
        wrapped: Any = super()
        wrapped.apply(self._alike(grads), trainable_variables)


class HostKeras2ScaleMixin(HostKerasScaleMixin):
    """`HostKerasScaleMixin` for Keras 2, where all gradients are passed to `apply_gradients`."""

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Update with gradients, already divided by the loss scale, if they are finite on all ranks. Collective."""
        pairs, wrapped = list(grads_and_vars), super()
        grads = self._alike([grad for grad, _ in pairs])
        given: Any = wrapped
        return given.apply_gradients(
            [(grad, variable) for grad, (_, variable) in zip(grads, pairs, strict=True)], *args, **kwargs
        )


def scaled_keras_optimizer(optimizer: Any, inner: Any, process_set: ProcessSet) -> Any:
    """Return a copy of the LossScaleOptimizer `optimizer` around `inner`, a host optimizer."""
    made = derived(
        optimizer, HostKeras2ScaleMixin if IS_KERAS_2 else HostKeras3ScaleMixin, {"_process_set": process_set}
    )
    # Bypasses Keras' setters, which would remove the scale of `inner`, or track it a second time.
    made.__dict__["_optimizer" if IS_KERAS_2 else "inner_optimizer"] = inner
    return made


def _keras_gradient_values(grad: Any) -> Any:
    return grad.values if isinstance(grad, tf.IndexedSlices) else tf.convert_to_tensor(grad)
