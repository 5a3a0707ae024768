"""Names of arrays in the result of `HostOptimizer.state_dict`, in addition to the state arrays of the rule."""

from typing import Final

WEIGHTS: Final = "weights"
MASTER: Final = "master"  # float32 copies of half-precision weights
MISSED: Final = "missed"  # number of updates in which a parameter had no gradient
FEEDBACK: Final = "error_feedback"  # rounding errors of compression, added to the next message
