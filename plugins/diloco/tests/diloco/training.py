"""A training with an elastic DiLoCo whose processes kill themselves, and whose weights are a ledger.

Each sample has a weight of its own, which its inner step moves by one; one more weight counts all inner steps of
a rank. So at the end a sample's weight is 1 by the number of ranks whose steps counted with it, and 0 where it did
not count, and the last weight is the number of steps. `FAULTS` in the environment has what happens, once each: a
slot, an inner step, the seconds from its beginning on, and what the slot's process does then: `1:4:0.003:kill`.
It kills or stops itself; of anything else it tells, by `fired-<index>` in `DIRECTORY`, to those who play it
(`diloco.cuts`). So many steps later as `HOLDS` says all ranks wait until `over-<index>` is there, and the
world has as many ranks as the file `expected` says. Each process writes a line
for each world that it enters, for each commit that it begins, and for each that it has come through, to
`events-<slot>-<pid>`.

    PYTHONPATH=../../../tests python -m diloco.training 100        # seeds 0 to 99
    PYTHONPATH=../../../tests python -m diloco.training --seed 41        # one of them again
"""

import faulthandler
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from support.commands import completed
from support.deadlines import patient
from support.seeds import play_histories

import ringtrain as rt
from ringtrain import elastic
from ringtrain.diloco import DiLoCo

SAMPLES, BATCH, STEPS, SYNC_EVERY = 120, 12, 32, 4
EPOCHS = 1 + STEPS * BATCH // SAMPLES
STEP_S = 0.004
# Of the modules that a rank imports.
FOLDERS = [str(Path(__file__).parents[1]), str(Path(__file__).parents[4] / "tests")]
DEADLINE_S = patient(180.0)


def train() -> None:
    """The training of one process."""
    faulthandler.register(signal.SIGUSR1)  # to see where a rank hangs
    directory, slot = Path(os.environ["DIRECTORY"]), os.environ["RINGTRAIN_SLOT"]
    faults = [fault.split(":") for fault in os.environ["FAULTS"].split(",")]
    holds = int(os.environ.get("HOLDS", "0"))
    events = (directory / f"events-{slot}-{os.getpid()}").open("a")

    def tell(**what: Any) -> None:
        events.write(json.dumps(what) + "\n")
        events.flush()

    def strike(step: int) -> None:
        for index, (struck, at, delay_s, act) in enumerate(faults):
            if struck == slot and int(at) <= step and not (fired := directory / f"fired-{index}").exists():
                fired.write_text(str(os.getpid()))
                if number := {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}.get(act):
                    threading.Timer(float(delay_s), os.kill, (os.getpid(), number)).start()

    def is_over(step: int) -> bool:
        """Whether all that was to happen some steps ago has, and the world is again what it shall be."""
        due = [index for index, (_, at, *_) in enumerate(faults) if int(at) + holds <= step]
        if (due or not step) and rt.size() < int((directory / "expected").read_text()):
            return False
        return all((directory / f"over-{index}").exists() for index in due)

    rt.init()
    params = {"counted": np.zeros(SAMPLES * EPOCHS), "steps": np.zeros(1)}
    params["more"] = np.zeros(int(os.environ.get("MORE", "0")))  # to be sent
    diloco = DiLoCo(
        {name: array for name, array in params.items() if array.size},
        outer=rt.optim.SGD(lr=1.0),
        sync_every=SYNC_EVERY,
        elastic=True,
        redundancy=int(os.environ["COPIES"]),
        **json.loads(os.environ.get("OPTIONS", "{}")),
    )
    overlaps = "overlap_steps" in os.environ.get("OPTIONS", "")
    shard = elastic.shard(SAMPLES, elastic.FixedGlobal(BATCH), seed=4)
    state: Any = elastic.State(diloco=diloco, shard=shard, step=0)

    def digest() -> str:
        return hashlib.sha256(diloco.outer_weights["counted"].tobytes()).hexdigest()

    def hold() -> None:
        while holds and not min(rt.allgather_object(is_over(state.step))):
            strike(state.step)
            time.sleep(0.02)
            state.check_host_updates()

    @elastic.run
    def run(state: Any) -> None:
        tell(entered=int(os.environ.get("RINGTRAIN_FORMATION", "0")), rank=rt.rank(), size=rt.size(), step=state.step)
        hold()
        fresh: list[int] = []  # samples since the last commit
        own: dict[int, list[int]] = {}  # since "counted" was synchronized last, by the next commit
        while state.step < STEPS:
            for batch in state.shard:
                strike(state.step + 1)
                time.sleep(STEP_S)
                used = (state.shard.epoch * SAMPLES + batch.indices[batch.mask]).tolist()
                params["counted"][used] += 1.0
                params["steps"] += 1.0
                state.step += 1
                fresh += used
                if state.diloco.step():
                    own[state.step], fresh = fresh, []
                    is_due = state.step % SYNC_EVERY == SYNC_EVERY // diloco.undoable % SYNC_EVERY
                    tell(begins=state.step, samples=own if is_due and not overlaps else {}, before=digest())
                    own = {} if is_due else own
                    state.commit()
                    tell(through=state.step, **({} if overlaps else {"digest": digest()}))
                    if state.step < STEPS:
                        hold()
                if state.step == STEPS:
                    break
            state.shard.next_epoch()
        diloco.finish()

    run(state)
    outer = diloco.outer_weights
    tell(ended=[outer[name].tolist() for name in ("counted", "steps")], whole=not diloco.undoable > 1)


def faults_of(seed: int, ranks: int) -> list[str]:
    """One to three kills, in steps of their own or in one."""
    chance = random.Random(f"diloco {seed}")
    last = STEPS - SYNC_EVERY  # afterwards the others may have come to the end
    at, found = chance.randint(1, last), []
    for slot in chance.sample(range(ranks), chance.randint(1, min(3, ranks - 1))):
        found.append(f"{slot}:{at}:{chance.uniform(0, 0.02):.4f}:kill")
        at = at if chance.random() < 0.3 else chance.randint(1, last)
    return found


def judge(seed: int, python: str = sys.executable) -> str:
    """Play a seed; what is wrong, empty: nothing. `python` runs the ranks."""
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
        program = [python, "-m", "diloco.training", "--train"]
        command = [str(Path(sys.executable).parent / "ringtrain"), *words, *program]
        done = completed(command, env={**env, "PYTHONPATH": os.pathsep.join(FOLDERS)}, cwd=folder, timeout=DEADLINE_S)
        wrong = wrong_in(Path(folder), done.returncode)
    return f"seed {seed}: {ranks} ranks, {on_loss}, {faults}: {wrong}\n{done.stderr}" if wrong else ""


def wrong_in(folder: Path, code: int) -> str:
    """Return the first error in the events of a run that exited with `code`; empty if there is none."""
    processes = [[json.loads(line) for line in path.open()] for path in sorted(folder.glob("events-*"))]
    ends = [one["ended"] for events in processes for one in events if "ended" in one]
    if code or not ends or any(end != ends[0] for end in ends):
        return f"the run ended with {code}, and processes with {len({str(end) for end in ends})} kinds of weights"
    counted, (steps,) = np.array(ends[0][0]).round(9), ends[0][1]
    # Where two fragments take turns, who comes between two of their synchronizations has half of the steps, and so
    # half the share of the others.
    is_whole = any(one.get("whole") for events in processes for one in events)
    if round(steps, 9) != STEPS and is_whole:
        return f"{steps} steps count of {STEPS}"
    formations = sorted({one["entered"] for events in processes for one in events if "entered" in one})
    for step in range(1, STEPS + 1):
        if len({one.get("digest") for events in processes for one in events if one.get("through") == step}) > 1:
            return f"ranks have other outer weights after step {step}"
        values: dict[str, set[float]] = {}  # by commit
        own_shares: dict[str, list[float]] = {}  # by commit, of each process
        before = set()
        for events in processes:
            for index, one in enumerate(events):
                if one.get("begins") != step or _is_undone(events, index):
                    continue
                stayed = _stayed(events, index, formations)
                before |= {one["before"]} if stayed else set()
                for commit, samples in one["samples"].items():
                    own = set(counted[samples].tolist())
                    values.setdefault(commit, set()).update(own - {0.0})
                    own_shares.setdefault(commit, []).extend(own - {0.0})
                    if len(own) > 1 or (own == {0.0} and stayed):
                        return f"samples of a process that came on from step {step} count {own}"
        counts = [found for commit, found in values.items() if is_whole or not _are_halves(own_shares[commit])]
        if any(len(found) > 1 for found in counts) or len(before) > 1:
            return f"samples of step {step} count {values}, and ranks had {len(before)} kinds of outer weights"
    return ""


def _are_halves(shares: list[float]) -> bool:
    """Whether some have half the share of the others, and all together everything."""
    return {round(share / max(shares, default=1), 6) for share in shares} <= {0.5, 1.0} and abs(sum(shares) - 1) < 1e-6


def _is_undone(events: list[dict[str, Any]], begun: int) -> bool:
    """Whether the process went back behind the commit that it began at `begun`, and took its steps again."""
    return any(one.get("begins", STEPS + 1) <= events[begun]["begins"] for one in events[begun + 1 :])


def _stayed(events: list[dict[str, Any]], begun: int, formations: list[int]) -> bool:
    """Whether the others went on with what the process did up to the commit that it began at `begun`: it came
    through another one, or was in the next world, too."""
    former = next((one["entered"] for one in reversed(events[:begun]) if "entered" in one), 0)
    following = next((number for number in formations if number > former), None)
    for one in events[begun + 1 :]:
        if "entered" in one:
            return bool(one["entered"] == following)
        if one.get("through", 0) > events[begun]["begins"] or "ended" in one:
            return True
    return False


if __name__ == "__main__":
    if "--train" in sys.argv:
        train()
    else:
        play_histories("20", judge)
