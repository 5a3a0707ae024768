"""A training script for tests: a sum over all ranks a step, its place kept in a file.

STEPS in all; the first attempt goes on and on at step HOLD, until something happens to it.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

import ringtrain as rt


def main(steps: int, hold: int) -> None:
    rt.init()
    place = Path(os.environ["RINGTRAIN_CHECKPOINT_DIR"]) / "place"
    first = int(place.read_text()) if place.exists() else 0
    print(f"begins at step {first}", flush=True)
    for step in range(first, steps):
        one_step(step, steps, place)
        while step == hold and os.environ["RINGTRAIN_ATTEMPT"] == "1":
            # Slow enough to leave the machine to others.
            time.sleep(0.01)
            one_step(step, steps, place)
    rt.shutdown()


def one_step(step: int, steps: int, place: Path) -> None:
    total = rt.allreduce(np.ones(1024, np.float32), op=rt.Sum)
    assert total[0] == rt.size()
    if rt.rank() == 0:
        place.with_suffix(".new").write_text(str(step))
        place.with_suffix(".new").replace(place)
    rt.report(step=step + 1, total_steps=steps, samples=1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
