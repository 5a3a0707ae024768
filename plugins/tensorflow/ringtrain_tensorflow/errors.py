"""Errors as users of Horovod catch them: as Ringtrain's own and as TensorFlow's at once."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import tensorflow as tf

from ringtrain.errors import ConfigurationError, MismatchError, NotInitializedError, RingtrainError


class NotSupportedError(ConfigurationError, NotImplementedError):
    """What is asked for does not exist for these tensors."""


# The first that fits; anything else is UnknownError, as in `tf.numpy_function`.
_KINDS: Final = (
    (MismatchError, tf.errors.FailedPreconditionError),
    (NotInitializedError, tf.errors.FailedPreconditionError),
    (NotImplementedError, tf.errors.UnimplementedError),
    (ConfigurationError, tf.errors.InvalidArgumentError),
    ((ValueError, TypeError), tf.errors.InvalidArgumentError),
)


def tensorflow_status_of(error: BaseException) -> int:
    """Return the code of TensorFlow's under which a graph reports `error`.

    FAILED_PRECONDITION: ranks disagree, or there is no world. INVALID_ARGUMENT: an argument is wrong.
    """
    kind = _kind_of_tensorflow_error(error)
    return int(tf.errors.UNKNOWN if kind is None else kind(None, None, "").error_code)


@contextmanager
def as_tensorflow() -> Iterator[None]:
    """Raise Ringtrain's errors as the same errors that are TensorFlow's, too."""
    try:
        yield
    except RingtrainError as error:
        kind = _kind_of_tensorflow_error(error)
        if kind is None or isinstance(error, tf.errors.OpError):
            raise
        own: Any = type(error)
        raise _both_tensorflow_errors(own, kind)(str(error)) from error


def _kind_of_tensorflow_error(error: BaseException) -> Any:
    return next((kind for own, kind in _KINDS if isinstance(error, own)), None)


@functools.cache
def _both_tensorflow_errors(own: Any, kind: Any) -> Any:
    def made(self: Any, *args: Any) -> None:
        message = args[0] if len(args) == 1 else args[2]  # Keras makes them anew, with TensorFlow's arguments
        kind.__init__(self, None, None, message)
        self.args = (message,)

    names = {"__init__": made, "__str__": lambda self: self.message, "__reduce__": lambda self: (own, self.args)}
    return type(own.__name__, (own, kind), {**names, "__doc__": own.__doc__, "__module__": own.__module__})
