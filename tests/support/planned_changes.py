"""Elastic jobs whose number of workers is changed, and whose pods are drained, by plans that follow from seeds.

    python -m support.planned_changes 300            # seeds 0 to 299
    python -m support.planned_changes --seed 41      # one of them

Launcher, agents and ranks are real processes. Nothing is killed: so no step may be made twice, no sample may count
twice or never, and the weights at the end are those of a training on one rank that nobody disturbs.
"""

import functools
import json
import os
import random
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import planned_training
from support.asking import ask
from support.deadlines import patient
from support.elastic_pods import GuardedGang
from support.elastic_training import ledger_of
from support.gang import GangProcesses, PodProcess
from support.planned_training import STEPS
from support.seeds import play_histories

JOB_DEADLINE_S = patient(180.0)
_POLL_S = 0.005
_KINDS = ("host", "host-two-copies", "arrays", "torch-host", "torch")
_SHAPES = ((3, 1), (4, 1), (5, 1), (2, 2), (3, 2), (4, 2))


@dataclass(frozen=True)
class Change:
    """After step `step` is begun, and `delay_s` more: so many `workers` are asked for, or else the pods `drained`
    are asked to stop, and made anew when they have."""

    step: int
    delay_s: float
    workers: int = 0
    drained: tuple[int, ...] = ()


@dataclass(frozen=True)
class History:
    """A job of at most `pods` pods, which begins with `first` of them, and what is done to it."""

    kind: str
    pods: int
    slots: int
    first: int
    transport: str
    on_loss: str
    changes: tuple[Change, ...]


def history_of(seed: int, kind: str | None = None) -> History:
    """The history of a seed; `kind`: in place of the one that follows from it."""
    chance = random.Random(f"planned {seed}")
    pods, slots = chance.choice(_SHAPES)
    first = asked = chance.randint(1, pods)
    changes: list[Change] = []
    step = 0
    while (step := step + chance.choice([1, 2, 6, 12])) < STEPS - 8:
        delay_s = chance.uniform(0, 0.06)
        if asked == 1 or chance.random() < 0.5:  # a pod that is all of a job takes the training with it
            asked = chance.choice([number for number in range(1, pods + 1) if number != asked])
            changes.append(Change(step, delay_s, workers=asked))
        else:
            drained = chance.sample(range(asked), chance.randint(1, asked - 1))
            changes.append(Change(step, delay_s, drained=tuple(sorted(drained))))
    transport = chance.choice(["auto", "grpc", "auto", "shm"]) if slots > 1 else chance.choice(["auto", "grpc"])
    transport = "auto" if transport == "shm" else transport
    drawn = chance.choice(_KINDS)
    return History(kind or drawn, pods, slots, first, transport, chance.choice(["Replace", "Shrink"]), tuple(changes))


@functools.cache
def undisturbed(kind: str) -> str:
    """The digest of the weights of a training on one rank that nobody disturbs."""
    with tempfile.TemporaryDirectory(prefix="planned-") as directory:
        playing = _Playing(History(kind, 1, 1, 1, "grpc", "Replace", ()), Path(directory))
        problem = playing.run()
        assert not problem, f"{problem}\n{playing.log()}"
        return str(playing.ends()[0]["digest"])


def judge(seed: int, kind: str | None = None, python: str = sys.executable) -> str:
    """Return the violations after the history of a seed; empty if there are none. `python` runs the ranks."""
    history = history_of(seed, kind)
    with tempfile.TemporaryDirectory(prefix="planned-") as directory:
        playing = _Playing(history, Path(directory), python)
        problem = playing.run()
        found = [problem] if problem else _wrong(history, playing)
        return "\n".join([f"seed {seed}: {history}", *found, playing.log()]) if found else ""


def _wrong(history: History, playing: "_Playing") -> list[str]:
    found = []
    digest, ledger = undisturbed(history.kind), ledger_of(STEPS)
    for slot, end in playing.ends().items():
        if end["ledger"] != ledger:
            at = next((i for i, (a, b) in enumerate(zip(end["ledger"], ledger, strict=False)) if a != b), STEPS)
            found.append(f"slot {slot} has other steps or samples from step {at + 1} on")
        if end["digest"] != digest:
            found.append(f"slot {slot} ends with weights {end['digest']}; undisturbed {digest}")
    if redone := [event for event in playing.events() if event.get("redone")]:
        found.append(f"steps were made again: {redone}")
    anew = [event for event in playing.events() if event.get("entered", 1) > 1 and not event.get("step")]
    if anew and min(change.step for change in history.changes) > 2:
        found.append(f"began anew: {anew}")
    if playing.lost_steps:
        found.append(f"the launcher says that {playing.lost_steps} steps were lost")
    return found


def shrinks_with_local_parameters(on_loss: str) -> tuple[str, str]:
    """Return the end reason and log of a job of three workers with rank-local parameters that shrinks to one."""
    history = History("host-local", 3, 1, 3, "auto", on_loss, (Change(6, 0.01, workers=1),))
    with tempfile.TemporaryDirectory(prefix="planned-") as directory:
        playing = _Playing(history, Path(directory))
        return playing.run(), playing.log()


class _Playing:
    def __init__(self, history: History, directory: Path, python: str = sys.executable) -> None:
        self._history, self._directory, self._python = history, directory, python
        self._job = GangProcesses(
            directory,
            history.pods,
            history.slots,
            DIRECTORY=str(directory),
            KIND=history.kind,
            PYTHONPATH=os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])),
            OPENBLAS_NUM_THREADS="1",
            TF_CPP_MIN_LOG_LEVEL="3",
            RINGTRAIN_TRANSPORT=history.transport,
            RINGTRAIN_TIMEOUT="60",
            RINGTRAIN_GRACE_PERIOD="60",
            RINGTRAIN_ELASTIC=history.on_loss,
            RINGTRAIN_ELASTIC_MIN_RANKS="1",
            RINGTRAIN_ELASTIC_MAX_RANKS=str(history.pods * history.slots),
            RINGTRAIN_ELASTIC_START_RANKS=str(history.first * history.slots),
            RINGTRAIN_ELASTIC_JOIN_DELAY="0.2",
            RINGTRAIN_ELASTIC_FORMATION_LIMIT="1000",
        )
        self._asked = history.first
        self._gang = GuardedGang(self._job, planned_training.__file__)
        self._launcher = self._gang.start(self._job.launcher())
        self._agents: dict[int, PodProcess] = {}
        self._told: set[int] = set()
        self.lost_steps = 0

    def run(self) -> str:
        """Until the job has ended; why it has not ended well, or nothing."""
        try:
            return self._run()
        finally:
            self._gang.close()

    def _run(self) -> str:
        changes, end = list(self._history.changes), time.monotonic() + JOB_DEADLINE_S
        due: float | None = None
        while (code := self._launcher.process.poll()) is None:
            if time.monotonic() > end:
                return f"the job hangs; {len(changes)} changes are left"
            self._look()
            if changes and due is None and (self._directory / f"step-{changes[0].step}").exists():
                due = time.monotonic() + changes[0].delay_s
            if due is not None and time.monotonic() >= due:
                self._do(changes.pop(0))
                due = None
            time.sleep(_POLL_S)
        return "" if code == 0 else f"the job has ended with {code}"

    def _look(self) -> None:
        """As the operator: a pod for each worker that is asked for; one of a name at a time."""
        for index, agent in list(self._agents.items()):
            if agent.process.poll() is not None:
                del self._agents[index]
        for index in range(self._asked):
            if index not in self._agents:
                command = (self._python, planned_training.__file__)
                self._agents[index] = self._gang.start(self._job.agent(index, *command))

    def _do(self, change: Change) -> None:
        if change.workers:
            self._asked = change.workers
            self._put(change.workers)
            drained: Sequence[int] = range(change.workers, self._history.pods)
        else:
            drained = change.drained
        for index in drained:
            agent = self._agents.get(index)
            if agent is not None and agent.pid not in self._told:  # told twice, it ends at once
                self._told.add(agent.pid)
                with suppress(ProcessLookupError):
                    agent.send(signal.SIGTERM)
        status = self._job.status()
        self.lost_steps = max(self.lost_steps, (status.get("elastic") or {}).get("lostSteps", 0))

    def _put(self, workers: int) -> None:
        url = f"http://127.0.0.1:{self._job.status_port}/workers"
        with suppress(urllib.error.URLError, ConnectionError):  # the job may just have ended
            ask(url, json.dumps({"workers": workers}).encode(), "PUT")

    def ends(self) -> dict[int, dict[str, Any]]:
        """Return the end records of the ranks of the last world, by slot."""
        found = {}
        for path in self._directory.glob("end-*.json"):
            found[int(path.stem.removeprefix("end-"))] = json.loads(path.read_text())
        return found

    def events(self) -> list[dict[str, Any]]:
        """Return the events that the processes wrote."""
        lines = [line for path in self._directory.glob("events-*") for line in path.read_text().splitlines()]
        return [json.loads(line) for line in lines]

    def log(self) -> str:
        """The end of what launcher and ranks have said."""
        return self._gang.log(self._launcher)


KIND = os.environ.get("KIND")  # of all histories, where it is set


def _told(seed: int) -> str:
    history = history_of(seed, KIND)
    shape = f"{history.kind}, {history.pods} x {history.slots}, {history.transport}"
    return f"{shape}, {len(history.changes)} changes"


if __name__ == "__main__":
    play_histories("30", functools.partial(judge, kind=KIND), _told)
