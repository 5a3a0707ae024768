"""The Keras that `tf.keras` is: Keras 3, or with `TF_USE_LEGACY_KERAS=1` Keras 2, from the package tf_keras."""

from typing import Any, Final

import tensorflow as tf

keras: Final[Any] = tf.keras
IS_KERAS_2: Final = not hasattr(keras, "ops")


def is_optimizer(given: Any) -> bool:
    """Whether `given` is an optimizer of this Keras."""
    kinds = [keras.optimizers.Optimizer]
    if IS_KERAS_2:
        kinds.append(keras.optimizers.legacy.Optimizer)
    return isinstance(given, tuple(kinds))


def variables_of(optimizer: Any) -> list[Any]:
    """Return the state of an optimizer; Keras 2 has optimizers whose `variables` is a method."""
    found = optimizer.variables
    return list(found() if callable(found) else found)
