"""Re-export of DiLoCo (training over slow links) from the plugin ringtrain-diloco."""

from ringtrain.shared.plugins import provide

provide(__name__, "ringtrain_diloco")

from ringtrain_diloco import *  # noqa: E402, F403 (for type checkers)
