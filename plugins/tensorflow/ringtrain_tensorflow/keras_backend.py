"""Check that Keras runs on TensorFlow.

It runs before TensorFlow is loaded: if PyTorch's CUDA build is loaded after it, as another backend requires, the
process may end with a segmentation fault and no message.
"""

from typing import Any

from ringtrain.errors import ConfigurationError


def check_backend(keras: Any) -> None:
    """Raise ConfigurationError if the backend of the module `keras` is not TensorFlow."""
    if (backend := keras.backend.backend()) != "tensorflow":
        raise ConfigurationError(
            f"ringtrain.keras works with Keras on TensorFlow, and KERAS_BACKEND is {backend}; "
            "for a PyTorch model use ringtrain.torch"
        )
