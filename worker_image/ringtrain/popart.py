"""Re-export of Graphcore's PopART names from the plugin ringtrain-graphcore."""

from ringtrain.shared.plugins import provide

provide(__name__, "ringtrain_graphcore.popart")

from ringtrain_graphcore.popart import *  # noqa: E402, F403 (for type checkers)
