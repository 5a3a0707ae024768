"""`ringtrain.tensorflow.keras.elastic` under Horovod's module name."""

from ringtrain_tensorflow.keras.elastic import *  # noqa: F403
from ringtrain_tensorflow.keras.elastic import __all__ as __all__
