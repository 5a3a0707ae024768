"""Re-export of the Ray runner of the plugin ringtrain-clusters: ranks in the actors of a placement group."""

from ringtrain.shared.plugins import provide

provide(__name__, "ringtrain_clusters.ray")

from ringtrain_clusters.ray import *  # noqa: E402, F403 (for type checkers)
