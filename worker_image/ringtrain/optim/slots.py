"""Names of the arrays in what `HostOptimizer.state_dict` returns, besides the slots of its rule."""

from typing import Final

WEIGHTS: Final = "weights"
MASTER: Final = "master"  # float32 of weights of half precision
MISSED: Final = "missed"  # number of updates in which a parameter had no gradient
FEEDBACK: Final = "error_feedback"  # what compression has not sent yet
