"""Calls from TensorFlow code, eager or inside `tf.function`, to Python functions on numpy arrays.

Inside `tf.function` such calls run in program order, so that ranks that run the same program make the same calls in the
same order. XLA cannot compile them.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final

import numpy as np
import tensorflow as tf

from ringtrain.adapter import Array, TransportThreadPool
from ringtrain_tensorflow.errors import NotSupportedError, as_tensorflow
from ringtrain_tensorflow.names import name_of_gradient
from ringtrain_tensorflow.operation import Function, add_operation

# Seconds for which a call that waits for other ranks may block a TensorFlow thread. Functions make their calls one
# after the other, so few threads are blocked. A session starts all calls at once, and updates must run while
# `streamed_call` waits.
HOLD_IN_FUNCTION_S, HOLD_IN_SESSION_S = 0.05, 0.001
# Seconds that a poll waits for the end of a call, on a thread outside TensorFlow's pools.
PATIENCE_S: Final = 0.05


class _TensorFlowGraphCalls:
    """Calls that graphs have started, each on one of Ringtrain's threads, by a number called ticket."""

    def __init__(self) -> None:
        self._pool = TransportThreadPool("ringtrain-tensorflow")
        self._tickets = itertools.count()
        self._begun: dict[int, Future[Sequence[Array]]] = {}

    def begin(self, function: Function, arrays: Sequence[Array], hold_s: float) -> list[Array]:
        """Start `function(*arrays)` on a thread; return a ticket, and whether the call still runs after `hold_s`."""
        ticket = next(self._tickets)
        self._begun[ticket] = self._pool.submit(function, *arrays)
        return [np.asarray(ticket, np.int64), *self.still_running(ticket, hold_s)]

    def still_running(self, ticket: Any, hold_s: float = PATIENCE_S) -> list[Array]:
        """Wait at most `hold_s` seconds; return whether the call `ticket` still runs."""
        call = self._begun[int(ticket)]
        wait([call], hold_s)
        return [np.asarray(not call.done())]

    def take(self, ticket: Any) -> Sequence[Array]:
        """Return the results of the ended call `ticket`, or raise its error."""
        return self._begun.pop(int(ticket)).result()


_calls: Final = _TensorFlowGraphCalls()


@tf.autograph.experimental.do_not_convert
def host_call(
    function: Function,
    inputs: Sequence[Any],
    dtypes: Sequence[Any],
    shapes: Sequence[Any],
    hold_s: float = HOLD_IN_FUNCTION_S,
) -> list[Any]:
    """Call `function` on the values of `inputs`; return tensors of the given dtypes and (partly known) shapes.

    In a graph the call runs outside TensorFlow's threads, which only poll for its end. Blocked threads would fill the
    inter-op pool, and ranks that have started different calls would wait for each other forever. An eager call
    raises errors of both Ringtrain's and TensorFlow's classes; a graph raises TensorFlow's errors.
    """
    if tf.executing_eagerly():
        with as_tensorflow():
            results = function(*(np.asarray(tensor) for tensor in inputs))
        pairs = zip(results, dtypes, strict=True)
        return [tf.convert_to_tensor(_as_dtype(result, dtype)) for result, dtype in pairs]
    if not tf.compat.v1.executing_eagerly_outside_functions():
        hold_s = HOLD_IN_SESSION_S
    with tf.device("/CPU:0"):
        ticket, running = add_operation(
            lambda *arrays: _calls.begin(function, arrays, hold_s), inputs, [tf.int64, tf.bool]
        )
        ended = _graph_call_end(ticket, tf.ensure_shape(running, []))
        with tf.control_dependencies([ended]):
            outputs = add_operation(_calls.take, [ticket], dtypes)
    for output, shape in zip(outputs, shapes, strict=True):
        output.set_shape(shape)
    return outputs


@tf.autograph.experimental.do_not_convert
def differentiable_tensorflow_call(
    forward: Function,
    backward: Callable[[str | None, Sequence[Array], Sequence[Array]], Sequence[Array]],
    inputs: Sequence[Any],
    shapes: Sequence[Any],
    name: str | None,
    kept: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]] = lambda inputs, outputs: (),
) -> list[Any]:
    """Call `forward` like `host_call`, and `backward` for gradients. Outputs have the dtypes of the inputs.

    `backward(gradient_name, output_gradients, kept_arrays)` returns the gradients of `inputs`. `gradient_name` is
    derived from `name`, the name of the call; `kept_arrays` are the tensors that `kept(inputs, outputs)` returned.
    """
    dtypes = [tensor.dtype for tensor in inputs]

    @tf.custom_gradient
    def call(*given: Any) -> Any:
        outputs = host_call(forward, given, dtypes, shapes)

        def gradient(*grads: Any) -> Any:
            own_name = name_of_gradient(name)

            def on_host(*arrays: Any) -> Any:
                return backward(own_name, arrays[: len(grads)], arrays[len(grads) :])

            needed = [*map(value_of, grads), *kept(given, outputs)]
            return gradient_call(on_host, needed, dtypes, [tensor.shape for tensor in inputs])

        return tuple(outputs), gradient

    return list(call(*inputs))


@tf.autograph.experimental.do_not_convert
def gradient_call(function: Function, inputs: Sequence[Any], dtypes: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:
    """Call `function`, which computes a gradient, like `host_call`, and return its results. Its own gradient is not
    defined, so a second derivative raises NotSupportedError."""

    @tf.custom_gradient
    def once(*given: Any) -> Any:
        def second(*grads: Any) -> Any:
            # TensorFlow also builds it if it is unused, so a graph raises only when it runs.
            return host_call(_no_second_gradient, grads, [t.dtype for t in given], [t.shape for t in given])

        return tuple(host_call(function, given, dtypes, shapes)), second

    return list(once(*inputs))


def _no_second_gradient(*_: Array) -> Sequence[Array]:
    raise NotSupportedError("a collective has no second derivative; do not differentiate its gradient")


def _graph_call_end(ticket: Any, running: Any) -> Any:
    """Return a tensor that is ready when the call `ticket` has ended. No TensorFlow thread is blocked meanwhile.

    The graph polls repeatedly, because a run that fails elsewhere can only end between two polls.
    """

    def ask(_: Any) -> Any:
        return _call_in_thread(_still_running_function()[0], ticket)

    return tf.while_loop(lambda still: still, ask, (running,))[0]


def _call_in_thread(function: Any, argument: Any) -> Any:
    """Return the result of the TensorFlow function `function`, run on a thread outside TensorFlow's pools.

    Reading a data set is an asynchronous TensorFlow operation with a separate thread. A function mapped over the data
    set can run in that thread.
    """
    arguments = tf.raw_ops.TensorDataset(components=[argument], output_shapes=[argument.shape])
    kind: dict[str, Any] = {
        "output_types": [output.dtype for output in function.outputs],
        "output_shapes": [output.shape for output in function.outputs],
    }
    results = tf.raw_ops.MapDataset(
        input_dataset=arguments, other_arguments=[], f=function, use_inter_op_parallelism=False, **kind
    )
    return tf.raw_ops.DatasetToSingleElement(dataset=results, **kind)[0]


@functools.cache
def _still_running_function() -> tuple[Any, Any]:
    """Return a TensorFlow function that calls `_calls.still_running`, and its graph, which must stay alive."""
    with tf.Graph().as_default() as graph:

        @tf.function(input_signature=[tf.TensorSpec([], tf.int64)], autograph=False)
        def still_running(ticket: Any) -> Any:
            (still,) = add_operation(_calls.still_running, [ticket], [tf.bool])
            return tf.ensure_shape(still, [])

        return still_running.get_concrete_function(), graph


def _as_dtype(result: Any, dtype: Any) -> Array:
    return np.asarray(result, tf.as_dtype(dtype).as_numpy_dtype, order="C")


def value_of(tensor: Any) -> Any:
    """Convert a tensor, a variable (of TensorFlow or Keras), an array or a number to a tensor."""
    return tf.convert_to_tensor(tensor)


def any_rows(tensor: Any) -> Any:
    """Return the shape of `tensor`, with an unknown number of rows."""
    shape = tensor.shape
    return tf.TensorShape([None]).concatenate(shape[1:]) if shape.rank else tf.TensorShape(None)
