"""Re-export of the Keras adapter of the plugin ringtrain-tensorflow: `import ringtrain.keras as hvd`."""

from ringtrain.shared.plugins import provide

provide(__name__, "ringtrain_tensorflow.standalone_keras")

from ringtrain_tensorflow.standalone_keras import *  # noqa: E402, F403 (for type checkers)
