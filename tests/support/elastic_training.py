"""A training on the host optimizer that dies where it is told to, for `ringtrain run` in tests of elastic worlds.

    DIRECTORY=/tmp/x FAULTS='[{"slot": 1, "on": "step", "number": 5, "delay_s": 0.003, "signal": 9}]'

Each fault happens once in the slot's lifetimes, `delay_s` after what it is `on`: `step` (the step of that number
begins), `park` (this rank leaves a world because a member was lost), `join` (a process that is not the slot's
first asks for its first world), `enter` (this rank has met the others of a world that is not its first, and state
is sent next). Each process that ends well leaves `end-<slot>.json`, each that begins leaves `begin-<slot>-<pid>`.
"""

import hashlib
import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import ringtrain as rt
from ringtrain import elastic

SAMPLES, BATCH, EPOCHS = 150, 15, 2
STEP_S = 0.004  # of work beside the exchange, so that a fault can hit it
DIRECTORY = Path(os.environ.get("DIRECTORY", "."))
SLOT = int(os.environ.get("RINGTRAIN_SLOT", "0"))
SHARDED = os.environ.get("SHARDED", "1") == "1"
FAULTS: list[dict[str, Any]] = json.loads(os.environ.get("FAULTS", "[]"))


def fault(on: str, number: int = 0) -> None:
    """Begin what is to happen at this point."""
    for index, one in enumerate(FAULTS):
        if (one["slot"], one["on"], one.get("number", 0)) != (SLOT, on, number):
            continue
        try:
            (DIRECTORY / f"fired-{index}").touch(exist_ok=False)
        except FileExistsError:
            continue
        threading.Timer(one["delay_s"], os.kill, (os.getpid(), one["signal"])).start()


def gradient(weights: np.ndarray[Any, Any], batch: rt.data.Batch) -> np.ndarray[Any, Any]:
    """Of some loss: follows from the weights and the samples alone."""
    target = np.sin(np.arange(weights.size)[None, :] * 0.01 + batch.indices[:, None])
    pull = (weights[None, :] - target.reshape(batch.indices.size, *weights.shape)) * batch.mask[:, None]
    found: np.ndarray[Any, Any] = pull.sum(0) / max(1, batch.count)
    return found.astype(np.float32)


class Training(elastic.State):
    """A state that says when it is restored."""

    def restore(self) -> None:
        fault("park")
        super().restore()


def main() -> None:
    logging.basicConfig(stream=sys.stderr)
    begun = sorted(DIRECTORY.glob(f"begin-{SLOT}-*"))
    (DIRECTORY / f"begin-{SLOT}-{os.getpid()}").touch()
    if begun:
        fault("join")
    rt.init()
    weights = {"one": np.full(700, rt.rank(), np.float32), "two": np.zeros(1300, np.float32)}
    optimizer = rt.optim.HostOptimizer(
        weights, rt.optim.Adam(lr=0.01), bucket_bytes=4096, sharded=SHARDED, elastic=True
    )
    shard = elastic.shard(SAMPLES, elastic.FixedGlobal(BATCH), seed=4)
    state = Training(optimizer=optimizer, shard=shard, step=0, ledger=[])
    state.register_reset_callbacks([lambda: fault("enter")])
    lost: list[int] = []
    reached = 0

    @elastic.run
    def train(state: Any) -> None:
        nonlocal reached
        if reached:
            lost.append(reached - state.step)
        for epoch in state.shard.epochs(EPOCHS):
            for batch in state.shard:
                state.step += 1
                reached = state.step
                fault("step", state.step)
                for name in ("two", "one"):
                    time.sleep(STEP_S / 2)
                    state.optimizer.submit(name, gradient(state.optimizer.weights[name], batch), batch.weight)
                state.optimizer.step()
                used = rt.allgather_object(batch.indices[batch.mask].tolist())
                state.ledger.append([state.step, epoch, sorted(index for part in used for index in part)])
                state.commit()
                reached = state.step

    train(state)
    digest = hashlib.sha256(b"".join(optimizer.weights[name].tobytes() for name in sorted(weights)))
    told = {"digest": digest.hexdigest(), "ledger": state.ledger, "pid": os.getpid(), "lost": lost}
    (DIRECTORY / f"end-{SLOT}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
