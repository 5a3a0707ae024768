"""An epoch of batches while data workers and loader processes are struck at scripted states of leases, by seed.

`python -m support.data_chaos FIRST LAST` in `tests/` runs the seeds from FIRST to LAST, and prints which failed.
"""

import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ringtrain.data import Shard, shard
from ringtrain.data.service import distribute
from support.data_worker import DataWorkers

STATES = ("asked", "loading", "sending", "received", "yielded", "committed")
ACTS = ("kill-worker", "stop-worker", "kill-loader", "stop-loader", "leave-file", "kill-rank")
WORKERS, SAMPLES, BATCH = 2, 96, 4
_POLL_S = 0.001
_STOPPED_S = 0.4


@dataclass(frozen=True)
class Strike:
    """Fault `act`, injected `delay_s` after the lease of batch `step` enters `state`.

    It hits data worker `worker` if the state does not name one.
    """

    state: str
    step: int
    act: str
    worker: int
    delay_s: float


def strikes_of(seed: int) -> list[Strike]:
    """Return the strikes in the epoch of `seed`; over the seeds, each state occurs with each act."""
    chance = random.Random(seed)
    return [
        Strike(
            STATES[(seed + number) % len(STATES)],
            chance.randrange(SAMPLES // BATCH),
            ACTS[(seed // len(STATES) + number) % len(ACTS)],
            chance.randrange(WORKERS),
            chance.choice((0.0, 0.001, 0.004)),
        )
        for number in range(3)
    ]


class Chaos:
    """Strikes the data workers of a pool, which is whole again after each seed. The rank is this process."""

    def __init__(self, workers: DataWorkers, watched: Path) -> None:
        self._workers = workers
        self._watched = watched
        self._lock = threading.Lock()
        self.fired: set[Strike] = set()

    def run(self, seed: int) -> None:
        """Raises AssertionError, which names the seed, unless each batch has come once, in order."""
        self.fired = set()
        for file in self._watched.iterdir():
            file.unlink()
        strikes = strikes_of(seed)
        order = shard(SAMPLES, BATCH, seed=seed, rank=0, size=1)
        expected = [(batch.consumed, batch.indices.tolist()) for batch in order.epoch(0)]
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(strikes, expected, done), daemon=True)
        watch.start()
        try:
            found = self._train(order, strikes, len(expected))
        finally:
            done.set()
            watch.join()
            self._mend()
        assert found == expected, f"seed {seed}: {strikes}"

    def _train(self, order: Shard, strikes: list[Strike], steps: int) -> list[tuple[int, list[int]]]:
        """The ledger of committed steps. A rank that is killed goes on behind the last of them."""
        ledger: list[tuple[int, list[int]]] = []
        while len(ledger) < steps:
            consumed = ledger[-1][0] if ledger else 0
            stream = iter(distribute("support.loaders:watched", order, epoch=0, consumed=consumed, prefetch=4))
            for batch in stream:
                step = len(ledger)
                assert batch["index"].tolist() == batch.indices.tolist()
                assert int(batch["bulk"][0]) == int(batch["bulk"][-1]) == int(batch.indices[0] % 251)
                # The batches behind this one are asked for, and some have been received.
                if any([self._due("yielded", step, strikes), self._due("asked", step + 3, strikes)]):
                    break
                if self._due("received", step + 1, strikes):
                    break
                ledger.append((batch.consumed, batch.indices.tolist()))
                if self._due("committed", step, strikes):
                    break
            stream.close()
        return ledger

    def _due(self, state: str, step: int, strikes: list[Strike]) -> bool:
        """Strike what is due; whether it is this rank that is killed."""
        killed = False
        for strike in strikes:
            if (strike.state, strike.step) == (state, step) and strike not in self.fired:
                killed |= self._strike(strike, None, None)
        return killed

    def _watch(self, strikes: list[Strike], expected: list[tuple[int, list[int]]], done: threading.Event) -> None:
        due = [strike for strike in strikes if strike.state in ("loading", "sending")]
        while due and not done.wait(_POLL_S):
            for strike in list(due):
                file = self._watched / f"{strike.state}-{expected[strike.step][1][0]}"
                if file.exists():
                    worker, loader = (int(pid) for pid in file.read_text().split())
                    self._strike(strike, worker, loader)
                    due.remove(strike)

    def _strike(self, strike: Strike, worker: int | None, loader: int | None) -> bool:
        with self._lock:
            self.fired.add(strike)
            time.sleep(strike.delay_s)
            index = self._index_of(worker, strike.worker)
            process = self._workers.processes[index]
            if strike.act == "kill-worker":
                self._workers.replace(index)
            elif strike.act == "stop-worker":
                process.send_signal(signal.SIGSTOP)
                threading.Timer(_STOPPED_S, process.send_signal, (signal.SIGCONT,)).start()
            elif strike.act == "leave-file":
                self._workers.only([one for one in self._workers.processes if one != index])
            elif strike.act == "kill-rank":
                return worker is None  # between two batches alone: it is the thread that trains
            else:
                self._strike_loader(strike.act, loader or _a_child_of(process.pid))
        return False

    @staticmethod
    def _strike_loader(act: str, pid: int | None) -> None:
        with suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, signal.SIGKILL if act == "kill-loader" else signal.SIGSTOP)
            if pid is not None and act == "stop-loader":
                threading.Timer(_STOPPED_S, _resume, (pid,)).start()

    def _index_of(self, pid: int | None, default: int) -> int:
        return next((index for index, one in self._workers.processes.items() if one.pid == pid), default)

    def _mend(self) -> None:
        for index, process in list(self._workers.processes.items()):
            if process.poll() is not None:
                self._workers.replace(index)
            process.send_signal(signal.SIGCONT)
        self._workers.only(list(self._workers.processes))


def _a_child_of(pid: int) -> int | None:
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            if children := file.read_text().split():
                return int(children[0])
    return None


def _resume(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def main() -> None:
    first, last = int(sys.argv[1]), int(sys.argv[2])
    failed = []
    with tempfile.TemporaryDirectory() as directory:
        watched = Path(directory) / "watched"
        watched.mkdir()
        os.environ["WATCHED"] = str(watched)
        workers = DataWorkers(Path(directory), WORKERS, slots=2)
        os.environ.update(workers.environment)
        chaos = Chaos(workers, watched)
        for seed in range(first, last + 1):
            try:
                chaos.run(seed)
            except Exception:
                failed.append(seed)
                print(f"seed {seed} failed", strikes_of(seed), flush=True)
                traceback.print_exc()
        workers.close()
    print(f"{last + 1 - first} seeds, failed: {failed or 'none'}", flush=True)


if __name__ == "__main__":
    main()
