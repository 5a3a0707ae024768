"""Errors that are Ringtrain's and TensorFlow's at once, so that code written for Horovod can catch them."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import tensorflow as tf

from ringtrain.errors import ConfigurationError, MismatchError, NotInitializedError, RingtrainError


class NotSupportedError(ConfigurationError, NotImplementedError):
    """Error: the operation does not support these tensors."""


# The first match is used; any other error is UnknownError, as in `tf.numpy_function`.
_KINDS: Final = (
    (MismatchError, tf.errors.FailedPreconditionError),
    (NotInitializedError, tf.errors.FailedPreconditionError),
    (NotImplementedError, tf.errors.UnimplementedError),
    (ConfigurationError, tf.errors.InvalidArgumentError),
    ((ValueError, TypeError), tf.errors.InvalidArgumentError),
)


def tensorflow_status_of(error: BaseException) -> int:
    """Return the TensorFlow error code with which a graph reports `error`.

    FAILED_PRECONDITION: ranks disagree, or there is no world. INVALID_ARGUMENT: an argument is wrong.
    """
    kind = _kind_of_tensorflow_error(error)
    return int(tf.errors.UNKNOWN if kind is None else kind(None, None, "").error_code)


@contextmanager
def as_tensorflow() -> Iterator[None]:
    """Context that converts Ringtrain's errors to errors that are also TensorFlow's."""
    try:
        yield
    except RingtrainError as error:
        kind = _kind_of_tensorflow_error(error)
        if kind is None or isinstance(error, tf.errors.OpError):
            raise
        own: Any = type(error)
        raise _combined_error_type(own, kind)(str(error)) from error


def _kind_of_tensorflow_error(error: BaseException) -> Any:
    return next((kind for own, kind in _KINDS if isinstance(error, own)), None)


@functools.cache
def _combined_error_type(own: Any, kind: Any) -> Any:
    def made(self: Any, *args: Any) -> None:
        message = args[0] if len(args) == 1 else args[2]  # Keras creates them again with TensorFlow's arguments
        kind.__init__(self, None, None, message)
        self.args = (message,)

    names = {"__init__": made, "__str__": lambda self: self.message, "__reduce__": lambda self: (own, self.args)}
    return type(own.__name__, (own, kind), {**names, "__doc__": own.__doc__, "__module__": own.__module__})
