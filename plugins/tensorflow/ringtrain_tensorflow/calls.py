"""Leave the graph: call Python with arrays, eagerly or inside `tf.function`.

Inside `tf.function` such calls keep the order of the program, so that ranks that run the same program make the
same calls in the same order. They cannot be compiled by XLA.
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

# How long a thread of TensorFlow's may be held by a call that waits for other ranks. Functions make their calls
# one after the other, so few threads are held; a session makes all at once, and beside the waits of
# `streamed_call` updates are to run.
HOLD_IN_FUNCTION_S, HOLD_IN_SESSION_S = 0.05, 0.001
# How long a question waits for the end of a call, in a thread that TensorFlow does not miss.
PATIENCE_S: Final = 0.05


class _TensorFlowGraphCalls:
    """Calls that graphs have begun, by ticket, each in a thread of ours."""

    def __init__(self) -> None:
        self._pool = TransportThreadPool("ringtrain-tensorflow")
        self._tickets = itertools.count()
        self._begun: dict[int, Future[Sequence[Array]]] = {}

    def begin(self, function: Function, arrays: Sequence[Array], hold_s: float) -> list[Array]:
        """Begin a call; return its ticket, and whether it still goes on after `hold_s`."""
        ticket = next(self._tickets)
        self._begun[ticket] = self._pool.submit(function, *arrays)
        return [np.asarray(ticket, np.int64), *self.goes_on(ticket, hold_s)]

    def goes_on(self, ticket: Any, hold_s: float = PATIENCE_S) -> list[Array]:
        """Return whether the call still goes on after `hold_s`."""
        call = self._begun[int(ticket)]
        wait([call], hold_s)
        return [np.asarray(not call.done())]

    def take(self, ticket: Any) -> Sequence[Array]:
        """Return the results of a call that has ended, or raise its error."""
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
    """Return `function(*arrays of inputs)` as tensors of the given dtypes and (partly known) shapes.

    In a graph the call runs beside TensorFlow's threads, which only ask whether it has ended: blocked ones would
    fill the inter-op pool, and ranks that began different calls first would wait for each other for ever. Eagerly
    errors are Ringtrain's and TensorFlow's at once, in graphs TensorFlow's.
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
        ended = _until_graph_call_ended(ticket, tf.ensure_shape(running, []))
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
    """Return `forward(*arrays of inputs)` as `host_call` does, with gradients: an output for each input, of its
    dtype.

    `backward(name, gradients of the outputs, arrays of kept(inputs, outputs))` returns the inputs' gradients; its
    name is made from that of the call, `name`.
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
            return call_of_gradient(on_host, needed, dtypes, [tensor.shape for tensor in inputs])

        return tuple(outputs), gradient

    return list(call(*inputs))


@tf.autograph.experimental.do_not_convert
def call_of_gradient(
    function: Function, inputs: Sequence[Any], dtypes: Sequence[Any], shapes: Sequence[Any]
) -> list[Any]:
    """As `host_call`, of what makes a gradient. A second derivative through it raises NotSupportedError: it would
    be silently without this part."""

    @tf.custom_gradient
    def once(*given: Any) -> Any:
        def second(*grads: Any) -> Any:
            # TensorFlow also builds it where nobody asks for it, so a graph raises when it runs.
            return host_call(_no_second_gradient, grads, [t.dtype for t in given], [t.shape for t in given])

        return tuple(host_call(function, given, dtypes, shapes)), second

    return list(once(*inputs))


def _no_second_gradient(*_: Array) -> Sequence[Array]:
    raise NotSupportedError("a collective has no second derivative; expected no gradient of its gradient")


def _until_graph_call_ended(ticket: Any, running: Any) -> Any:
    """Return a tensor that is there when the call has ended; until then no thread of TensorFlow's is held.

    The graph asks again and again, as a run that fails elsewhere ends between two questions only.
    """

    def ask(_: Any) -> Any:
        return _in_a_thread_of_its_own(_goes_on()[0], ticket)

    return tf.while_loop(lambda still: still, ask, (running,))[0]


def _in_a_thread_of_its_own(function: Any, argument: Any) -> Any:
    """Return `function(argument)`, for which no thread of TensorFlow's is held.

    Reading a data set is an asynchronous operation of TensorFlow's with a thread of its own. A function that is
    mapped over the data set runs in it, where it is told to.
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
def _goes_on() -> tuple[Any, Any]:
    """`_calls.goes_on` as a function of TensorFlow's; and the graph without which its operation would end."""
    with tf.Graph().as_default() as graph:

        @tf.function(input_signature=[tf.TensorSpec([], tf.int64)], autograph=False)
        def goes_on(ticket: Any) -> Any:
            (still,) = add_operation(_calls.goes_on, [ticket], [tf.bool])
            return tf.ensure_shape(still, [])

        return goes_on.get_concrete_function(), graph


def _as_dtype(result: Any, dtype: Any) -> Array:
    return np.asarray(result, tf.as_dtype(dtype).as_numpy_dtype, order="C")


def value_of(tensor: Any) -> Any:
    """Return a tensor for a tensor, variable (of TensorFlow or Keras), array or number."""
    return tf.convert_to_tensor(tensor)


def any_rows(tensor: Any) -> Any:
    """The shape of `tensor` with any number of rows."""
    shape = tensor.shape
    return tf.TensorShape([None]).concatenate(shape[1:]) if shape.rank else tf.TensorShape(None)
