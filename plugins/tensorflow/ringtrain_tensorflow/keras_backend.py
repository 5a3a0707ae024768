"""Which backend Keras has.

Asked before TensorFlow is loaded: beside that, loading PyTorch's CUDA build, as another backend does, can end the
process with a segmentation fault and no word.
"""

from typing import Any

from ringtrain.errors import ConfigurationError


def check_backend(keras: Any) -> None:
    """Raises ConfigurationError where `keras`, of whatever version, is not on TensorFlow."""
    if (backend := keras.backend.backend()) != "tensorflow":
        raise ConfigurationError(
            f"ringtrain.keras works with Keras on TensorFlow, and KERAS_BACKEND is {backend}; "
            "for a PyTorch model use ringtrain.torch"
        )
