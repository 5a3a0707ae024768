"""Keep variables in host memory and update them there, while forward and backward run on the device."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from ringtrain.process_groups.process_sets import ProcessSet, global_process_set
from ringtrain.reduction.ops import Average
from ringtrain.tensorflow.gradients import GradientOptions, GradientReducer
from ringtrain.tensorflow.members import stays_alone

HOST = "/CPU:0"


class HostStrategy:
    """Variables on the host, gradients from the device, reduction and update on the host.

        strategy = HostStrategy()
        with strategy.scope():
            model, optimizer = build(), keras.optimizers.AdamW()      # a plain optimizer
        with tf.GradientTape() as tape:
            loss = …
        strategy.apply_gradients(optimizer, zip(tape.gradient(loss, weights), weights))

    Weights and optimizer state take no device memory between steps. Works inside `tf.function`.
    """

    def __init__(self, op: Any = Average, process_set: ProcessSet = global_process_set) -> None:
        self._reducer = GradientReducer("HostStrategy", GradientOptions(op=op, process_set=process_set).checked())

    @contextlib.contextmanager
    def scope(self) -> Iterator["HostStrategy"]:
        """Place every variable that is made within it on the host."""

        def on_host(make: Callable[..., Any], **arguments: Any) -> Any:
            with tf.device(HOST):
                return make(**arguments)

        with tf.variable_creator_scope(on_host):
            yield self

    def apply_gradients(self, optimizer: Any, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        """Reduce the gradients over all ranks and apply them, on the host."""
        pairs = [(grad, variable) for grad, variable in grads_and_vars if grad is not None]
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        with tf.device(HOST), self.scope():
            if not stays_alone(self._reducer.options.process_set):
                grads = self._reducer.reduce(grads, variables)
            optimizer.apply_gradients(zip(grads, variables, strict=True))
