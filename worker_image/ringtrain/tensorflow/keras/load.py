"""Load a saved Keras model for training on many ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringtrain.errors import ConfigurationError
from ringtrain.tensorflow.compression import Compression, Compressor
from ringtrain.tensorflow.keras.api import IS_KERAS_2, keras
from ringtrain.tensorflow.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Return the saved model with its optimizer distributed, state and all.

    `filepath`: what `model.save` wrote. `custom_optimizers`: optimizer classes that the model needs, beyond Keras'
    own. `custom_objects`: other classes and functions, by name. `compression`: of gradients. `legacy_opts`: the
    model was saved with a legacy optimizer of Keras 2; Keras 3 has none.
    """
    if legacy_opts and not IS_KERAS_2:
        raise ConfigurationError(
            "load_model: legacy_opts is True; expected False, Keras 3 has no legacy optimizers"
        )
    known = {optimizer.__name__: optimizer for optimizer in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
