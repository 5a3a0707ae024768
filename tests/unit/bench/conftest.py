"""The benchmarks are no part of a distribution: they are found from the repository's root."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))
