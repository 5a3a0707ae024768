"""`ringtrain.keras` under the name that Horovod has for Keras inside TensorFlow: the same, but for the order of
`DistributedOptimizer`'s arguments.
"""

from ringtrain.keras import *  # noqa: F403
from ringtrain.keras import __all__ as __all__
from ringtrain.keras import callbacks as callbacks
from ringtrain.keras.optimizer import DistributedOptimizer as DistributedOptimizer  # type: ignore[assignment]
