"""An elastic training whose batches data workers load. Its ledger has every sample of every committed step.

`samples EPOCHS STEP_S` in argv. Writes `end-<slot>.json` with the ledger, and touches `step-<n>` as it goes.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import ringtrain as rt
from ringtrain import elastic
from ringtrain.data.service import distribute

DIRECTORY = Path(os.environ["DIRECTORY"])
SAMPLES, EPOCHS, STEP_S = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])


def main() -> None:
    rt.init()
    state = elastic.State(shard=elastic.shard(SAMPLES, elastic.FixedGlobal(12), seed=5), step=0, ledger=[], sizes=[])

    @elastic.run
    def train(state: Any) -> None:
        state.sizes.append(rt.size())
        for epoch in state.shard.epochs(EPOCHS):
            for batch in distribute("support.loaders:slow", state.shard, prefetch=4):
                assert batch["square"].tolist() == [float(index**2) for index in batch.indices]
                time.sleep(STEP_S)
                used = rt.allgather_object(batch.indices[batch.mask].tolist())
                state.ledger.append([epoch, sorted(index for part in used for index in part)])
                state.step += 1
                (DIRECTORY / f"step-{state.step}").touch()
                state.commit()
                rt.report(state.step, samples=batch.count)

    train(state)
    slot = os.environ.get("RINGTRAIN_SLOT", os.environ.get("RINGTRAIN_RANK"))
    (DIRECTORY / f"end-{slot}.json").write_text(json.dumps({"ledger": state.ledger, "sizes": state.sizes}))


if __name__ == "__main__":
    main()
