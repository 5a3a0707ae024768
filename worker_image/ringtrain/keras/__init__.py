# ruff: isort: skip_file
"""Train a Keras model on many ranks, with Horovod's names and semantics: `import ringtrain.keras as hvd`.

The same as `ringtrain.tensorflow.keras` but for the order of `DistributedOptimizer`'s arguments.
"""

from ringtrain.common.basics import *  # noqa: F403
from ringtrain.tensorflow.keras import *  # noqa: F403
from ringtrain.tensorflow.keras import __all__ as __all__
from ringtrain.tensorflow.keras.api import check_backend
from ringtrain.keras.order import DistributedOptimizer as DistributedOptimizer  # type: ignore[assignment]


def __dir__() -> list[str]:
    return __all__


check_backend()
