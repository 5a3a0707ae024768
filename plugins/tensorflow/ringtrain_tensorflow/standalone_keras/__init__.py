# ruff: isort: skip_file
"""Train a Keras model on many ranks, with Horovod's API: `import ringtrain.keras as hvd`.

Same as `ringtrain.tensorflow.keras`, except for the order of `DistributedOptimizer`'s arguments.
"""

import os
from importlib.util import find_spec

from ringtrain_tensorflow.keras_backend import check_backend

# Keras 2, requested with TensorFlow's variable, has one backend; without TensorFlow the imports below fail with its
# name.
if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() not in ("1", "true") and find_spec("tensorflow") is not None:
    import keras

    check_backend(keras)

from ringtrain.common.basics import *  # noqa: F403
from ringtrain_tensorflow.keras import *  # noqa: F403
from ringtrain_tensorflow.keras import __all__ as __all__
from ringtrain_tensorflow.standalone_keras.order import DistributedOptimizer as DistributedOptimizer  # type: ignore[assignment]


def __dir__() -> list[str]:
    return __all__
