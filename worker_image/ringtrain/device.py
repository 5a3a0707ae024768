"""Re-export of the host optimizers for devices without a framework, from the plugin ringtrain-graphcore."""

from ringtrain.shared.plugins import provide

provide(__name__, "ringtrain_graphcore.device")

from ringtrain_graphcore.device import *  # noqa: E402, F403 (for type checkers)
