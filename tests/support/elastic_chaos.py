"""Elastic runs of this machine in which ranks are killed and stopped at points that follow from a seed.

    python -m support.elastic_chaos 1000          # seeds 0 to 999
    python -m support.elastic_chaos --seed 417    # one of them again

The points are the same for the same seed; what the processes are doing there depends on the machine too.
"""

import argparse
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import elastic_training
from support.guard import GUARD

DEADLINE_S = 240.0
STEPS = 20


@dataclass(frozen=True)
class Case:
    """One run. `sharded`: each rank has a part of the optimizer's state."""

    seed: int
    ranks: int
    transport: str
    on_loss: str
    sharded: bool
    faults: tuple[dict[str, Any], ...]

    @property
    def untouched(self) -> set[int]:
        """The slots in which nothing happens."""
        return set(range(self.ranks)) - {fault["slot"] for fault in self.faults}


@dataclass
class Played:
    """How a run went. `ends`: what each slot's process has left; `begun`: how many processes a slot had."""

    code: int
    output: str
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)
    fired: int = 0


def case_of(seed: int) -> Case:
    """The run of a seed."""
    chance = random.Random(seed)
    ranks = chance.choice([2, 3, 4, 5, 6])
    kind = chance.choice(["step", "step", "join", "park", "enter", "stop"])
    slot = chance.randrange(ranks)
    number = signal.SIGSTOP if kind == "stop" else signal.SIGKILL
    first = {
        "slot": slot, "on": "step", "number": chance.randrange(2, STEPS - 2), "delay_s": chance.uniform(0, 0.012),
        "signal": int(number),
    }  # fmt: skip
    faults = [first]
    if kind == "join":  # the one that comes in its place dies as well
        faults.append(_second(slot, "join", chance.uniform(0, 0.5)))
    if kind in ("park", "enter"):  # a survivor dies while the world is formed anew
        other = (slot + 1 + chance.randrange(ranks - 1)) % ranks
        faults.append(_second(other, kind, chance.uniform(0, 0.05)))
    on_loss, transport = chance.choice(["Replace", "Shrink"]), chance.choice(["grpc", "shm"])
    # Two ranks that are lost at once may have been all that had a part of the state.
    return Case(seed, ranks, transport, on_loss, kind not in ("park", "enter"), tuple(faults))


def _second(slot: int, on: str, delay_s: float) -> dict[str, Any]:
    return {"slot": slot, "on": on, "delay_s": delay_s, "signal": int(signal.SIGKILL)}


def play(case: Case, directory: Path) -> Played:
    """Run it; a run that has not ended in time is ended, and has the code -1."""
    environment = {
        **os.environ,
        "DIRECTORY": str(directory),
        "FAULTS": json.dumps(case.faults),
        "SHARDED": str(int(case.sharded)),
        "RINGTRAIN_TRANSPORT": case.transport,
        # A stopped rank is found by its silence alone.
        "RINGTRAIN_TIMEOUT": "6" if any(f["signal"] == signal.SIGSTOP for f in case.faults) else "60",
    }
    options = ("-np", case.ranks, "--min-np", 1, "--on-loss", case.on_loss, "--name", "chaos", "--verbose")
    process = subprocess.Popen(
        [sys.executable, "-m", "ringtrain", "run", *map(str, options), sys.executable, elastic_training.__file__],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    GUARD.begun(process.pid)
    try:
        output, _ = process.communicate(timeout=DEADLINE_S)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, code = process.communicate()[0], -1
    GUARD.ended(process.pid)
    played = Played(code, output, fired=len(list(directory.glob("fired-*"))))
    for path in directory.glob("end-*.json"):
        played.ends[int(path.stem.removeprefix("end-"))] = json.loads(path.read_text())
    for slot in range(case.ranks):
        played.begun[slot] = len(list(directory.glob(f"begin-{slot}-*")))
    return played


@functools.cache
def undisturbed(ranks: int) -> str:
    """The digest of the weights after a run in which nothing happens; neither transport nor shards change it."""
    with tempfile.TemporaryDirectory() as directory:
        played = play(Case(-1, ranks, "grpc", "Replace", True, ()), Path(directory))
    assert played.code == 0, played.output
    (digest,) = {end["digest"] for end in played.ends.values()}
    return str(digest)


def wrong(case: Case, played: Played) -> list[str]:
    """What is not as it must be; empty if all is well."""
    # A rank that is struck when others have ended their training ends the job, which says so.
    is_late = "the other ranks had finished" in played.output
    if played.code != 0 and not is_late:
        return [f"the run {'hangs' if played.code == -1 else f'ended with {played.code}'}"]
    found = []
    if not played.fired:
        found.append("no fault has happened")
    wanted = set(range(case.ranks)) if case.on_loss == "Replace" else case.untouched
    if not played.ends or (wanted - set(played.ends) and not is_late):
        found.append(f"slots {sorted(wanted - set(played.ends))} have not ended training")
    digests = {end["digest"] for end in played.ends.values()}
    if len(digests) > 1:
        found.append(f"ranks ended with different weights: {digests}")
    if case.on_loss == "Replace" and digests != {undisturbed(case.ranks)}:
        found.append("the weights are not those of an undisturbed run")
    for slot, end in played.ends.items():
        found += [f"slot {slot}: {text}" for text in _wrong_in(end)]
    for slot in case.untouched:
        if played.begun[slot] != 1:
            found.append(f"slot {slot} has had {played.begun[slot]} processes, and nothing happened to it")
    return found


def _wrong_in(end: dict[str, Any]) -> list[str]:
    found = []
    if any(steps not in (0, 1) for steps in end["lost"]):
        found.append(f"steps lost at each change: {end['lost']}")
    if [step for step, _, _ in end["ledger"]] != list(range(1, STEPS + 1)):
        found.append(f"committed steps are {[step for step, _, _ in end['ledger']]}")
    for epoch in range(elastic_training.EPOCHS):
        used = sorted(index for _, of, indices in end["ledger"] if of == epoch for index in indices)
        if used != list(range(elastic_training.SAMPLES)):
            found.append(f"epoch {epoch} has used {len(used)} samples, {len(set(used))} different ones")
    return found


def failed(seed: int) -> str:
    """Play a seed; what was wrong, with how to play it again, or nothing."""
    case = case_of(seed)
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        played = play(case, Path(directory))
    if not (found := wrong(case, played)):
        return ""
    again = f"again: make elastic-chaos SEED={seed}"
    return "\n".join([f"{case}", *found, again, *played.output.splitlines()[-60:]])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", type=int, nargs="?", default=50)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    seeds = [given.seed] if given.seed is not None else range(given.first, given.first + given.seeds)
    bad = 0
    for seed in seeds:
        text = failed(seed)
        bad += bool(text)
        print(f"seed {seed}: {text or 'ok'}", flush=True)
    sys.exit(min(bad, 1))


if __name__ == "__main__":
    main()
