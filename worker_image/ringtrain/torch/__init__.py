"""Re-export of the PyTorch adapter of the plugin ringtrain-torch: `import ringtrain.torch as hvd`."""

from ringtrain.shared.plugins import provide

provide(__name__, "ringtrain_torch")

from ringtrain_torch import *  # noqa: E402, F403 (for type checkers)
