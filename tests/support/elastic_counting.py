"""An elastic training script for tests: counts steps until a file is there, says which process is in which world.

python elastic_counting.py STOP: ends, on all ranks at the same step, once the file STOP exists.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

import ringtrain as rt
from ringtrain import elastic

SAMPLES = 4096


@elastic.run
def train(state: elastic.State, stop: Path) -> None:
    """A step adds up the samples that all ranks have, which is known beforehand."""
    slot = os.environ["RINGTRAIN_SLOT"]
    print(f"slot {slot} in process {os.getpid()} is in a world of {rt.size()} at step {state.step}", flush=True)
    while True:
        for batch in state.shard:
            mine = [batch.count, int(batch.indices[batch.mask].sum()), int(stop.exists())]
            count, total, ends = (int(value) for value in rt.allreduce(np.array(mine, np.int64), op=rt.Sum))
            state.seen, state.total, state.step = state.seen + count, state.total + total, state.step + 1
            rt.report(step=state.step, samples=batch.count)
            state.commit()
            if ends:
                return
            time.sleep(0.02)  # slow enough to leave the machine to others
        assert state.seen % SAMPLES == 0, f"{state.seen} samples after {state.shard.epoch + 1} epochs"
        state.shard.next_epoch()


def main() -> None:
    rt.init()
    shard = elastic.shard(SAMPLES, elastic.FixedGlobal(32))
    state = elastic.State(shard=shard, step=0, seen=0, total=0)
    train(state, Path(sys.argv[1]))
    print(f"slot {os.environ['RINGTRAIN_SLOT']} ends after step {state.step}", flush=True)
    rt.shutdown()


if __name__ == "__main__":
    main()
