"""Deadlines of tests, scaled up on a machine that is slow or busy when the tests begin.

A passing test never waits so long. The first process that imports this module measures the machine once; the
processes that it starts reuse the result.
"""

import os
import time

# Of `_loop` on one of two idle cores of a small virtual machine, where deadlines are as they are written.
REFERENCE_S = 0.12
# A machine that is slower than that has no use for tests.
MOST = 10.0
VARIABLE = "TESTS_PACE"


def _loop() -> float:
    """Return the seconds that three million additions take."""
    began, total = time.perf_counter(), 0
    for number in range(3_000_000):
        total += number
    return time.perf_counter() - began


PACE = float(os.environ.setdefault(VARIABLE, f"{min(MOST, max(1.0, _loop() / REFERENCE_S)):.2f}"))


def patient(seconds: float) -> float:
    """Return `seconds` on the reference machine, multiplied if this machine is slower."""
    return seconds * PACE
