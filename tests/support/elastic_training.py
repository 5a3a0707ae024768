"""A training on the host optimizer that is struck where it is told to, for ranks of an elastic job under test.

Its steps come in windows of `WINDOW`. `faults.json` in `DIRECTORY` has what happens in them, each once:

    {"index": 0, "slot": 1, "on": "step", "number": 5, "delay_s": 0.003, "act": "kill"}

`on`: the point after which, `delay_s` later, it happens: `step` (the step of that number begins), `commit` (its
commit does), `park` (this rank leaves a world because a member was lost), `join` (a process that is not the
slot's first begins), `meet` (this rank is told a world that is not its slot's first), `transfer` (the ranks of
such a world have met; state is sent next). `after`: the index of a fault that has to be there before; `nth`:
how often this process has to come to the point after that. `act`: `kill`, `stop` and the like strike this
process; for anything else `struck-<index>` is all that happens here. Between two windows ranks wait until all
that was to happen in the first has happened and every slot has a rank. Then they write a checkpoint, which a
training goes on from if nobody has its state any more.

Each process writes `begin-<slot>-<pid>` and a line a world and a window to `events-<slot>-<pid>`.
"""

import faulthandler
import hashlib
import json
import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import ringtrain as rt
from ringtrain import elastic

WINDOW = 8
SAMPLES, BATCH, SEED = 150, 15, 4
STEP_S = 0.004  # of work beside the exchange, so that a fault can hit it
_IDLE_S = 0.01
_LONGEST_IDLE_S = 2.0  # with all ranks here, until what has not begun counts as something that never will
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "wake": signal.SIGSTOP, "pulse": signal.SIGSTOP}
DIRECTORY = Path(os.environ.get("DIRECTORY", "."))
SLOT = int(os.environ.get("RINGTRAIN_SLOT", "0"))
SLOTS = int(os.environ.get("SLOTS", "1"))
WINDOWS = int(os.environ.get("WINDOWS", "1"))
SHARDED = os.environ.get("SHARDED", "1") == "1"
COPIES = int(os.environ.get("COPIES", "1"))


class Faults:
    """Faults planned for this slot."""

    def __init__(self) -> None:
        path = DIRECTORY / "faults.json"
        self.all: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
        self.own = [one for one in self.all if one["slot"] == SLOT]
        self._reached: Counter[int] = Counter()

    def at(self, on: str, number: int = 0) -> None:
        """Begin what is to happen at this point."""
        for one in self.own:
            if (one["on"], one.get("number", 0)) == (on, number) and self._is_due(one):
                self._reached[one["index"]] += 1
                if self._reached[one["index"]] == one["nth"]:
                    self._begin(one)

    def watch_for_worlds(self) -> None:
        """Notice, on a thread, the moment in which this rank is told another world."""
        if any(one["on"] == "meet" for one in self.own):
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        known = os.environ.get("RINGTRAIN_FORMATION", "")
        while True:
            told = os.environ.get("RINGTRAIN_FORMATION", "")
            if told != known:
                known = told
                self.at("meet")
            time.sleep(0.001)

    def _is_due(self, one: dict[str, Any]) -> bool:
        return "after" not in one or (DIRECTORY / f"fired-{one['after']}").exists()

    def _begin(self, one: dict[str, Any]) -> None:
        try:
            claimed = os.open(DIRECTORY / f"fired-{one['index']}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return
        os.write(claimed, str(os.getpid()).encode())
        os.close(claimed)
        threading.Timer(one["delay_s"], self._strike, (one,)).start()

    @staticmethod
    def _strike(one: dict[str, Any]) -> None:
        (DIRECTORY / f"struck-{one['index']}").touch()
        if one["act"] in _SIGNALS:
            os.kill(os.getpid(), _SIGNALS[one["act"]])

    def over(self, window: int) -> bool:
        """Whether what was to happen in a window has: those that were struck are gone, or were let go on."""
        return all((DIRECTORY / f"over-{one['index']}").exists() for one in self.all if one["window"] == window)


FAULTS = Faults()


def tell(**what: Any) -> None:
    """Write down what has happened in this process."""
    with (DIRECTORY / f"events-{SLOT}-{os.getpid()}").open("a") as file:
        file.write(json.dumps({**what, "at": time.monotonic()}) + "\n")


def gradient(weights: np.ndarray[Any, Any], batch: rt.data.Batch) -> np.ndarray[Any, Any]:
    """The sum over samples of small integers: however samples are cut over ranks, the sum has the same bits."""
    each = (batch.indices[:, None] * 7 + np.arange(weights.size)[None, :] * 13) % 11 - 5
    pull = (np.sign(weights)[None, :] + each) * batch.mask[:, None]
    found: np.ndarray[Any, Any] = pull.sum(0)
    return found.astype(np.float32)


class Training(elastic.State):
    """A state that says when it is committed, restored and sent."""

    def commit(self) -> None:
        if self.windows == (self.step - 1) // WINDOW:  # not the commit that closes a window
            FAULTS.at("commit", self.step)
        super().commit()

    def restore(self) -> None:
        (DIRECTORY / f"left-{os.environ['RINGTRAIN_FORMATION']}").touch()
        FAULTS.at("park")
        super().restore()

    def sync(self) -> None:
        if int(os.environ.get("RINGTRAIN_FORMATION", "0")) > 1:
            FAULTS.at("transfer")
        super().sync()


def ledger_of(steps: int) -> list[str]:
    """Return the ledger of a rank after `steps` undisturbed steps: the epoch and samples of each step."""
    lines: list[str] = []
    order = elastic.shard(SAMPLES, elastic.FixedGlobal(BATCH), seed=SEED)._order
    for epoch in range(steps * BATCH // SAMPLES + 1):
        indices = order.order(epoch)
        for start in range(0, SAMPLES, BATCH):
            used = sorted(indices[start : start + BATCH].tolist())
            lines.append(f"{len(lines) + 1} {epoch} {','.join(map(str, used))}")
    return lines[:steps]


def digest_of(weights: Any) -> str:
    whole = b"".join(np.ascontiguousarray(weights[name]).tobytes() for name in sorted(weights))
    return hashlib.sha256(whole).hexdigest()[:16]


def close_window(state: Any) -> None:
    """At a window's end, wait until everybody is here again and all has happened; write a checkpoint."""
    window = state.windows
    if state.step < (window + 1) * WINDOW:
        return
    began = time.monotonic()
    while True:
        ready = rt.size() == SLOTS and FAULTS.over(window)
        if rt.allreduce(np.array([float(ready)]), rt.Min)[0]:
            break
        if rt.size() == SLOTS and time.monotonic() - began > _LONGEST_IDLE_S:
            (DIRECTORY / f"idle-{window}").touch()
        time.sleep(_IDLE_S)
        state.check_host_updates()
    whole = state.optimizer.state_dict()
    tell(
        closed=window, rank=rt.rank(), formation=int(os.environ.get("RINGTRAIN_FORMATION", "0")),
        digest=digest_of(state.optimizer.weights),
    )  # fmt: skip
    state.windows += 1
    if rt.rank() == 0:
        values = {name: getattr(state, name) for name in ("step", "ledger", "windows")}
        path = DIRECTORY / "checkpoint.new"
        path.write_bytes(pickle.dumps({"optimizer": whole, "shard": state.shard.state_dict(), "values": values}))
        path.rename(DIRECTORY / "checkpoint")
        (DIRECTORY / f"closed-{window}").touch()
    state.commit()


def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    faulthandler.register(signal.SIGUSR1)  # to see where a rank hangs
    is_later = bool(list(DIRECTORY.glob(f"begin-{SLOT}-*")))
    (DIRECTORY / f"begin-{SLOT}-{os.getpid()}").touch()
    if is_later:
        FAULTS.at("join")
    FAULTS.watch_for_worlds()
    rt.init()
    weights = {"one": np.full(700, 0.5, np.float32), "two": np.zeros(1300, np.float32)}
    optimizer = rt.optim.HostOptimizer(
        weights, rt.optim.Adam(lr=0.01), bucket_bytes=4096, sharded=SHARDED, elastic=True, redundancy=COPIES
    )
    shard = elastic.shard(SAMPLES, elastic.FixedGlobal(BATCH), seed=SEED)
    values = {"step": 0, "windows": 0, "ledger": []}
    checkpoint = DIRECTORY / "checkpoint"
    if checkpoint.exists():
        kept = pickle.loads(checkpoint.read_bytes())
        optimizer.load_state_dict(kept["optimizer"])
        shard.load_state_dict(kept["shard"])
        values = kept["values"]
    state = Training(optimizer=optimizer, shard=shard, **values)
    state.begin_from("a checkpoint, or its first step")  # what is played here needs no other one
    reached: int | None = None

    @elastic.run
    def train(state: Any) -> None:
        nonlocal reached
        tell(
            entered=int(os.environ.get("RINGTRAIN_FORMATION", "0")), rank=rt.rank(), window=state.windows,
            step=state.step, lost=None if reached is None else reached - state.step,
        )  # fmt: skip
        reached = state.step
        close_window(state)
        while state.step < WINDOWS * WINDOW:
            for batch in state.shard:
                state.step += 1
                reached = state.step
                FAULTS.at("step", state.step)
                for name in ("two", "one"):
                    time.sleep(STEP_S / 2)
                    found = gradient(state.optimizer.weights[name], batch)
                    state.optimizer.submit(name, found, float(rt.size()))
                state.optimizer.step()
                used = rt.allgather_object(batch.indices[batch.mask].tolist())
                text = ",".join(str(index) for index in sorted(index for part in used for index in part))
                state.ledger.append(f"{state.step} {state.shard.epoch} {text}")
                state.commit()
                reached = state.step
                close_window(state)
                if state.step == WINDOWS * WINDOW:
                    return
            state.shard.next_epoch()

    train(state)
    (DIRECTORY / f"end-{SLOT}.json").write_text(json.dumps({"ledger": state.ledger, "pid": os.getpid()}))


if __name__ == "__main__":
    main()
