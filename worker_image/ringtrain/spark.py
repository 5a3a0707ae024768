"""Re-export of the Spark runner of the plugin ringtrain-clusters: ranks in the tasks of a barrier stage."""

from ringtrain.shared.plugins import provide

provide(__name__, "ringtrain_clusters.spark")

from ringtrain_clusters.spark import *  # noqa: E402, F403 (for type checkers)
