"""`ringtrain.keras` under the name that Horovod has for Keras inside TensorFlow; with Keras 3 they are one."""

from ringtrain.keras import *  # noqa: F403
from ringtrain.keras import __all__ as __all__
from ringtrain.keras import callbacks as callbacks
