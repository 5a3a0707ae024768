"""The digits example with a scripted fault: `faulty_digits.py VICTIM SIGNAL RANK STEP [the example's options]`.

In the first attempt SIGNAL strikes when RANK reports STEP (0: before it joins the others). VICTIM: that `rank`, or
the `agent` that started it.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "digits"))

import train

import ringtrain as rt


class StruckRuntime:
    """`ringtrain` as the example uses it, until the fault strikes."""

    def __init__(self, victim: str, number: str, rank: str, step: str) -> None:
        self._victim = os.getpid() if victim == "rank" else os.getppid()
        self._number = signal.Signals[number]
        self._step = int(step) if (os.environ["RANK"], os.environ["RINGTRAIN_ATTEMPT"]) == (rank, "1") else None

    def __getattr__(self, name: str) -> Any:
        return getattr(rt, name)

    def init(self) -> None:
        self._reach(0)
        rt.init()

    def report(self, step: int, **told: Any) -> None:
        self._reach(step)
        rt.report(step, **told)

    def _reach(self, step: int) -> None:
        if step == self._step:
            os.kill(self._victim, self._number)


train.rt = StruckRuntime(*sys.argv[1:5])
del sys.argv[1:5]
train.main()
