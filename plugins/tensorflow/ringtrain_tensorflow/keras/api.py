"""Access to the Keras behind `tf.keras`: Keras 3, or Keras 2 (package tf_keras) with `TF_USE_LEGACY_KERAS=1`."""

from typing import Any, Final

import tensorflow as tf

keras: Final[Any] = tf.keras
IS_KERAS_2: Final = not hasattr(keras, "ops")


def is_keras_optimizer(given: Any) -> bool:
    """Return whether `given` is an optimizer of the Keras version in use."""
    kinds = [keras.optimizers.Optimizer]
    if IS_KERAS_2:
        kinds.append(keras.optimizers.legacy.Optimizer)
    return isinstance(given, tuple(kinds))


def variables_of(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer with its learning rate, which Keras 2 leaves out of `variables`."""
    found = optimizer.variables
    state = list(found() if callable(found) else found)
    if not IS_KERAS_2:
        return state
    # Learning rates of new optimizers and hyperparameters of legacy ones; a number or a schedule is not state.
    numbers = [getattr(optimizer, "_learning_rate", None), *getattr(optimizer, "_hyper", {}).values()]
    held = {id(variable) for variable in state}
    return state + [number for number in numbers if isinstance(number, tf.Variable) and id(number) not in held]
