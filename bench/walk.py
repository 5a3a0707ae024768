"""Through how many files and folders one call goes: `python -m bench.walk`.

Counts calls of Python functions of this repository in the calling thread, the second time that each thing is done:
an allreduce of four floats over gRPC, `state_dict()` and the save of 1,000 floats (two ranks), and the plan of an
idle job that runs. A change of folder is a call of a function in another folder than that of the call before.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OURS = tuple(str(ROOT / folder) + os.sep for folder in ("worker_image", "operator"))


class Walk:
    """The files that a call goes through, and how often it changes folders."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.calls = self.changes = 0
        self._at = ""

    def follow(self, call: Callable[[], object]) -> None:
        """Call it, and look at every function that it calls in this thread."""
        sys.setprofile(self._see)
        try:
            call()
        finally:
            sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(OURS):
            folder = os.path.dirname(file)
            self.calls += 1
            self.changes += self._at not in ("", folder)
            self.files.add(file)
            self._at = folder


def report(name: str, call: Callable[[], object]) -> None:
    """Do it once, so that what is done once is done; then print the row of the second time."""
    call()
    walk = Walk()
    walk.follow(call)
    print(f"| {name} | {len(walk.files)} | {walk.changes} | {walk.calls} |", flush=True)


def walk_of_a_rank() -> None:
    """The rows of the runtime, printed by rank 0."""
    import numpy as np

    import ringtrain as rt
    from ringtrain.checkpoint import Checkpoints
    from ringtrain.optim import AdamW, HostOptimizer

    rt.init()
    say = report if rt.rank() == 0 else lambda _, call: (call(), call())
    ones = np.ones(4, np.float32)
    say("allreduce of four floats, gRPC", lambda: rt.allreduce(ones))
    optimizer = HostOptimizer({"w": np.zeros(1000, np.float32)}, AdamW(lr=0.1))
    with tempfile.TemporaryDirectory() as folder:
        saved = Checkpoints(folder)
        steps = iter(range(1, 3))
        say("state_dict and save of 1,000 floats", lambda: saved.save(next(steps), optimizer.state_dict()))
    rt.shutdown()


def walk_of_a_plan() -> None:
    """The row of the operator."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.planworld import FIXED, running

    from ringtrain_operator.plan import plan_object

    world = running()
    world.settle()
    observed = world.observed()

    def plan() -> object:
        """Of pods that nobody has asked anything yet, as each look of the operator has them."""
        seen = replace(observed, pods=tuple(replace(pod) for pod in observed.pods))
        return plan_object(world.job, seen, world.now, FIXED)

    report("plan of an idle running job", plan)


def main() -> None:
    print("| what | files | changes of folder | calls |\n| --- | --- | --- | --- |", flush=True)
    command = [
        str(Path(sys.executable).parent / "ringtrain"),
        "run",
        "-q",
        "-np",
        "2",
        sys.executable,
        "-m",
        "bench.walk",
        "rank",
    ]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "RINGTRAIN_TRANSPORT": "grpc"}, check=True, timeout=120)
    walk_of_a_plan()


if __name__ == "__main__":
    walk_of_a_rank() if sys.argv[1:] == ["rank"] else main()
