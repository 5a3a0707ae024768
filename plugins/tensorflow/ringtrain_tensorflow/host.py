"""Training with variables in host memory: the device computes gradients, and the host updates the variables."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from ringtrain import Average, ProcessSet, global_process_set
from ringtrain.errors import ConfigurationError
from ringtrain_tensorflow.gradients import TensorFlowGradientOptions, TensorFlowGradientReducer
from ringtrain_tensorflow.keras.host_optimizer import HostKerasMixin
from ringtrain_tensorflow.world_ops import is_always_alone

HOST = "/CPU:0"


class HostStrategy:
    """Strategy that stores variables in host memory. Devices compute gradients; the host reduces and applies them.

        strategy = HostStrategy()
        with strategy.scope():
            model, optimizer = build(), keras.optimizers.AdamW()      # a plain optimizer
        with tf.GradientTape() as tape:
            loss = …
        strategy.apply_gradients(optimizer, zip(tape.gradient(loss, weights), weights))

    Weights and optimizer state need no device memory between steps. A `ringtrain.keras.HostOptimizer` stores 1/size of
    the state on each rank; for every other optimizer each rank stores the whole state. Works inside `tf.function`, and
    in `tf.compat.v1` graphs, where `apply_gradients` returns the operation. `variables_on_host=False` leaves variables
    and updates where TensorFlow places them.
    """

    def __init__(
        self,
        op: Any = Average,
        process_set: ProcessSet = global_process_set,
        *,
        variables_on_host: bool = True,
    ) -> None:
        self._device = HOST if variables_on_host else None
        self._reducer = TensorFlowGradientReducer(
            "HostStrategy", TensorFlowGradientOptions(op=op, process_set=process_set).checked()
        )

    @contextlib.contextmanager
    def scope(self) -> Iterator["HostStrategy"]:
        """Context in which variables are created in host memory."""

        def on_host(make: Callable[..., Any], **arguments: Any) -> Any:
            with tf.device(self._device):
                return make(**arguments)

        with tf.variable_creator_scope(on_host):
            yield self

    def apply_gradients(self, optimizer: Any, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Reduce the gradients over all ranks and apply them on the host; return the optimizer's result."""
        pairs = list(grads_and_vars)
        if isinstance(optimizer, HostKerasMixin):
            return self._apply_with_host_optimizer(optimizer, pairs)
        variables = [variable for _, variable in pairs]
        grads = self.reduce_gradients([grad for grad, _ in pairs], variables)
        present = [pair for pair in zip(grads, variables, strict=True) if pair[0] is not None]
        return self.on_host(lambda: optimizer.apply_gradients(present))

    def _apply_with_host_optimizer(self, optimizer: Any, pairs: list[tuple[Any, Any]]) -> Any:
        """Apply gradients with a HostOptimizer, which averages them over ranks, and return its result."""
        ours = self._reducer.options
        if ours.op is not Average or ours.process_set is not optimizer.process_set:
            raise ConfigurationError(
                f"HostStrategy has op={ours.op.value} and {ours.process_set}, but its HostOptimizer "
                f"averages over {optimizer.process_set}; expected op=Average and the same process_set"
            )
        return self.on_host(lambda: optimizer.apply_gradients(pairs))

    def reduce_gradients(self, grads: Sequence[Any], variables: Sequence[Any] | None = None) -> list[Any]:
        """Return `grads` reduced over all ranks, in host memory."""
        if is_always_alone(self._reducer.options.process_set):
            return list(grads)
        held = list(grads) if variables is None else list(variables)  # None cannot be replaced by zeros
        return self.on_host(lambda: self._reducer.reduce(list(grads), held))

    def on_host(self, make: Callable[[], Any]) -> Any:
        """Call `make` with operations and variables placed on the host; return its result."""
        with tf.device(self._device), self.scope():
            return make()
