"""Re-export of the TensorFlow adapter of ringtrain-tensorflow: `import ringtrain.tensorflow as hvd`."""

from ringtrain.shared.plugins import provide

provide(__name__, "ringtrain_tensorflow")

from ringtrain_tensorflow import *  # noqa: E402, F403 (for type checkers)
