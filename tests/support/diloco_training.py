"""A training with an elastic DiLoCo whose processes kill themselves, and whose weights are a ledger.

Each sample has a weight of its own, which its inner step moves by one; one more weight counts all inner steps of
a rank. So at the end a sample's weight is 1 by the number of ranks whose steps counted with it, and 0 where it did
not count, and the last weight is the number of steps. `FAULTS` in the environment has what happens, once each: a
slot, an inner step, and the seconds from its beginning until the slot's process kills itself: `1:4:0.003,0:7:0`.
Each process writes a line for each commit that it begins, and one for each that it has come through, to
`events-<slot>-<pid>` in `DIRECTORY`.

    python -m support.diloco_training 100        # seeds 0 to 99
    python -m support.diloco_training --seed 41        # one of them again
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import ringtrain as rt
from ringtrain import elastic

SAMPLES, BATCH, STEPS, SYNC_EVERY = 120, 12, 24, 4
STEP_S = 0.004
DEADLINE_S = 180.0


def train() -> None:
    """The training of one process."""
    directory, slot = Path(os.environ["DIRECTORY"]), os.environ["RINGTRAIN_SLOT"]
    faults = [fault.split(":") for fault in os.environ["FAULTS"].split(",")]
    events = (directory / f"events-{slot}-{os.getpid()}").open("a")

    def tell(**what: Any) -> None:
        events.write(json.dumps(what) + "\n")
        events.flush()

    def strike(step: int) -> None:
        for index, (struck, at, delay_s) in enumerate(faults):
            if (struck, at) == (slot, str(step)) and not (fired := directory / f"fired-{index}").exists():
                fired.touch()
                threading.Timer(float(delay_s), os.kill, (os.getpid(), signal.SIGKILL)).start()

    rt.init()
    params = {"counted": np.zeros(3 * SAMPLES), "steps": np.zeros(1)}
    diloco = rt.optim.DiLoCo(
        params,
        outer=rt.optim.SGD(lr=1.0),
        sync_every=SYNC_EVERY,
        elastic=True,
        redundancy=int(os.environ["COPIES"]),
    )
    shard = elastic.shard(SAMPLES, elastic.FixedGlobal(BATCH), seed=4)
    state = elastic.State(diloco=diloco, shard=shard, step=0)

    @elastic.run
    def run(state: Any) -> None:
        own: list[int] = []
        while state.step < STEPS:
            for batch in state.shard:
                strike(state.step + 1)
                time.sleep(STEP_S)
                used = (state.shard.epoch * SAMPLES + batch.indices[batch.mask]).tolist()
                params["counted"][used] += 1.0
                params["steps"] += 1.0
                own += used
                state.step += 1
                if state.diloco.step():
                    tell(begins=state.step, samples=own)
                    own = []
                    state.commit()
                    outer = state.diloco.outer_weights["counted"]
                    tell(through=state.step, digest=hashlib.sha256(outer.tobytes()).hexdigest())
                if state.step == STEPS:
                    return
            state.shard.next_epoch()

    run(state)
    tell(ended=[array.tolist() for array in state.diloco.outer_weights.values()])


def faults_of(seed: int, ranks: int) -> list[str]:
    """One to three kills, in steps of their own or in one."""
    chance = random.Random(f"diloco {seed}")
    last = STEPS - SYNC_EVERY  # afterwards the others may have come to the end
    at, found = chance.randint(1, last), []
    for slot in chance.sample(range(ranks), chance.randint(1, min(3, ranks - 1))):
        found.append(f"{slot}:{at}:{chance.uniform(0, 0.02):.4f}")
        at = at if chance.random() < 0.3 else chance.randint(1, last)
    return found


def judge(seed: int) -> str:
    """Play a seed; what is wrong, empty: nothing."""
    chance = random.Random(f"shape {seed}")
    ranks, on_loss = chance.choice([2, 3, 4]), chance.choice(["Replace", "Shrink"])
    faults, copies = faults_of(seed, ranks), ranks - 1  # so that one rank has all that is left
    with tempfile.TemporaryDirectory(prefix="diloco-") as folder:
        env = {**os.environ, "DIRECTORY": folder, "FAULTS": ",".join(faults), "COPIES": str(copies)}
        env["RINGTRAIN_TRANSPORT"] = chance.choice(["grpc", "shm"])
        words = [
            "run",
            "-q",
            "-np",
            str(ranks),
            "--min-np",
            "1",
            "--on-loss",
            on_loss,
            "--log-dir",
            f"{folder}/logs",
        ]
        program = [sys.executable, "-m", "support.diloco_training", "--train"]
        command = [str(Path(sys.executable).parent / "ringtrain"), *words, *program]
        done = subprocess.run(
            command,
            env={**env, "PYTHONPATH": str(Path(__file__).parents[1])},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        wrong = _wrong(Path(folder), done.returncode)
    return f"seed {seed}: {ranks} ranks, {on_loss}, {faults}: {wrong}\n{done.stderr}" if wrong else ""


def _wrong(folder: Path, code: int) -> str:
    processes = [[json.loads(line) for line in path.open()] for path in sorted(folder.glob("events-*"))]
    ends = [one["ended"] for events in processes for one in events if "ended" in one]
    if code or not ends or any(end != ends[0] for end in ends):
        return f"the run ended with {code}, and processes with {len({str(end) for end in ends})} kinds of weights"
    counted, (steps,) = np.array(ends[0][0]).round(9), ends[0][1]
    if round(steps, 9) != STEPS:
        return f"{steps} steps count of {STEPS}"
    for step in range(SYNC_EVERY, STEPS + 1, SYNC_EVERY):
        if len({one["digest"] for events in processes for one in events if one.get("through") == step}) > 1:
            return f"ranks have other outer weights after step {step}"
        values = set()
        for events in processes:
            came_on = max((one.get("through", 0) for one in events), default=0) >= step
            for samples in [one["samples"] for one in events if one.get("begins") == step]:
                values |= (own := set(counted[samples].tolist())) - {0.0}
                if len(own) > 1 or (own == {0.0} and came_on):
                    return f"samples of a process that came through step {step} count {own}"
        if len(values) > 1:
            return f"samples of step {step} count {values}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", nargs="?", type=int, default=20, help="how many from 0 on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="one, alone")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train()
        return
    seeds = range(given.first, given.first + given.seeds) if given.seed is None else [given.seed]
    bad = 0
    for seed in seeds:
        began = time.monotonic()
        text = judge(seed)
        bad += bool(text)
        print(f"seed {seed}: {time.monotonic() - began:.0f} s: {text or 'right'}", flush=True)
    print(f"{len(seeds)} histories, {bad} of them bad")
    sys.exit(min(bad, 1))


if __name__ == "__main__":
    main()
