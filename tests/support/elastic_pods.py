"""Plays an elastic job whose processes are struck: starts launcher and pods, also in the place of ended ones."""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from support import elastic_training
from support.deadlines import patient
from support.elastic_faults import Fault, Shape
from support.gang import GangProcesses, PodProcess, until
from support.guard import GUARD

# From one window's end to the next: only a job that hangs waits for it.
WINDOW_DEADLINE_S = patient(120.0)
_POLL_S = 0.01
_STALL_S = 0.3


@dataclass
class Played:
    """Record of one job. `problem`: the reason for a bad end; `events`: the events that the processes wrote, in order,
    with slot and process id; `ledgers`: the steps that the last process of each slot recorded; `missed`: faults whose
    point was not reached, because another fault changed the later steps; `stalls`: times at which this process could
    not poll, and for how long.
    """

    problem: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    ledgers: dict[int, list[str]] = field(default_factory=dict)
    log: str = ""
    missed: int = 0
    stalls: list[tuple[float, float]] = field(default_factory=list)

    def closed(self, window: int) -> dict[int, dict[str, Any]]:
        """Return the event that each slot wrote at a window's end."""
        return {one["slot"]: one for one in self.events if one.get("closed") == window}

    def entered(self, window: int) -> list[dict[str, Any]]:
        """Return the events that ranks wrote when they entered the training within a window."""
        return [one for one in self.events if "entered" in one and one["window"] == window]

    def was_kept_waiting(self, window: int) -> bool:
        """Whether the machine was so busy within a window that processes may have been silent for want of it."""
        begins = max((one["at"] for one in self.closed(window - 1).values()), default=0.0)
        ends = max((one["at"] for one in self.closed(window).values()), default=float("inf"))
        return any(begins <= at + seconds and at <= ends for at, seconds in self.stalls)

    def ranks_of(self, formation: int) -> dict[int, int]:
        """The slots of a formation, as far as they have entered it, by rank."""
        return {one["rank"]: one["slot"] for one in self.events if one.get("entered") == formation}


def play(shape: Shape, plans: Sequence[Sequence[Fault]], directory: Path) -> Played:
    """Run a job of that shape; in each of its windows the faults of a plan happen."""
    with closing(_Playing(shape, plans, directory)) as playing:
        problem = playing.run()
    played = Played(problem, _events(directory), log=playing.log(), missed=playing.missed, stalls=playing.stalls)
    for path in directory.glob("end-*.json"):
        played.ledgers[int(path.stem.removeprefix("end-"))] = json.loads(path.read_text())["ledger"]
    return played


class GuardedGang:
    """A launcher and agents that end with this process, whatever ends it; what all of them have said."""

    def __init__(self, job: GangProcesses, program: str) -> None:
        """`program`: a word of the ranks' command lines."""
        self.job, self._program = job, program

    def start(self, pod: PodProcess) -> PodProcess:
        """Have `pod` end with this process."""
        GUARD.begun(pod.pid)
        return pod

    def show_stacks(self) -> None:
        """Have ranks write into their logs where they are."""
        before, asked = self._stacks(), 0
        for process in self.job.descendants():
            with suppress(psutil.Error, ProcessLookupError):
                if any(self._program in word for word in process.cmdline()):
                    os.kill(process.pid, signal.SIGUSR1)
                    asked += 1
        with suppress(AssertionError):  # one that is stopped writes nothing
            until("stacks of all ranks", lambda: self._stacks() >= before + asked, deadline_s=5)

    def log(self, launcher: PodProcess) -> str:
        """The end of what launcher, agents and ranks have said."""
        errors = sorted(self.job.directory.glob("job-worker-*.err"))
        logs = [launcher.err()[-6000:], *(path.read_text()[-3000:] for path in errors)]
        return "\n-----\n".join([*logs, *(text[-5000:] for text in self._rank_logs())])

    def close(self) -> None:
        """Leave nothing behind."""
        self.job.close()
        for pod in self.job.pods:
            GUARD.ended(pod.pid)

    def _stacks(self) -> int:
        return sum(text.count("most recent call first") for text in self._rank_logs())

    def _rank_logs(self) -> list[str]:
        slots = range(self.job.workers * self.job.slots)
        return [self.job.rank_log(slot).decode(errors="replace") for slot in slots]


class _Playing:
    def __init__(self, shape: Shape, plans: Sequence[Sequence[Fault]], directory: Path) -> None:
        self._shape, self._directory = shape, directory
        self._faults = _written(plans)
        (directory / "faults.json").write_text(json.dumps(self._faults))
        self._job = GangProcesses(
            directory,
            shape.pods,
            shape.slots,
            DIRECTORY=str(directory),
            SLOTS=str(shape.ranks),
            WINDOWS=str(len(plans)),
            SHARDED=str(int(shape.sharded)),
            COPIES=str(shape.copies),
            PYTHONPATH=os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])),
            OPENBLAS_NUM_THREADS="1",
            RINGTRAIN_TRANSPORT=shape.transport,
            RINGTRAIN_TIMEOUT=str(shape.timeout_s),
            RINGTRAIN_ELASTIC=shape.on_loss,
            RINGTRAIN_ELASTIC_MIN_RANKS="1",
            RINGTRAIN_ELASTIC_JOIN_DELAY="0.2",
            RINGTRAIN_ELASTIC_FORMATION_LIMIT="10000",
        )
        self._gang = GuardedGang(self._job, elastic_training.__file__)
        self._launcher = self._gang.start(self._job.launcher())
        self._agents = {index: self._agent(index) for index in range(shape.pods)}
        self._struck_launcher = False
        self._under_way: dict[int, _UnderWay] = {}
        self._over: set[int] = set()
        self.missed = 0
        self.stalls: list[tuple[float, float]] = []

    def run(self) -> str:
        """Until the job has ended; why it has not ended well, or nothing."""
        closed, at = 0, time.monotonic()
        while True:
            code = self._launcher.process.poll()
            if code is not None and not self._struck_launcher:
                return "" if code == 0 else f"the job has ended with {code}"
            if code is not None:
                self._struck_launcher = False
                self._launcher = self._gang.start(self._job.launcher())
            for index, agent in self._agents.items():
                if agent.process.poll() is not None and self._launcher.process.poll() is None:
                    self._agents[index] = self._agent(index)
            self._see_faults()
            if (now_closed := self._closed()) > closed:
                closed, at = now_closed, time.monotonic()
            if time.monotonic() - at > WINDOW_DEADLINE_S:
                self._gang.show_stacks()
                return f"the job hangs after {closed} windows"
            slept = time.monotonic()
            time.sleep(_POLL_S)
            if (stalled := time.monotonic() - slept) > _STALL_S:
                self.stalls.append((slept, stalled))

    def log(self) -> str:
        """The end of what launcher, agents and ranks have said."""
        return self._gang.log(self._launcher)

    def close(self) -> None:
        self._gang.close()

    def _agent(self, index: int) -> PodProcess:
        return self._gang.start(self._job.agent(index, sys.executable, elastic_training.__file__))

    def _closed(self) -> int:
        return len(list(self._directory.glob("closed-*")))

    def _see_faults(self) -> None:
        for fault in self._faults:
            if fault["index"] in self._over:
                continue
            fired = self._directory / f"fired-{fault['index']}"
            if not fired.exists():
                if (self._directory / f"idle-{fault['window']}").exists():
                    self._give_up(fault)
            elif fault["index"] not in self._under_way and (pid := int(fired.read_text() or 0)):
                was_alive = _lives(pid)
                if (self._directory / f"struck-{fault['index']}").exists():
                    self._under_way[fault["index"]] = self._begin(fault, pid)
                elif not was_alive:  # something else has ended it first
                    self._miss(fault)
            under_way = self._under_way.get(fault["index"])
            if under_way is not None and self._is_over(fault, under_way):
                (self._directory / f"over-{fault['index']}").touch()
                self._over.add(fault["index"])

    def _give_up(self, fault: dict[str, Any]) -> None:
        """Have a fault whose point nobody comes to any more never happen, unless it happens just now."""
        with suppress(FileExistsError):
            os.close(os.open(self._directory / f"fired-{fault['index']}", os.O_CREAT | os.O_EXCL))
            self._miss(fault)

    def _miss(self, fault: dict[str, Any]) -> None:
        (self._directory / f"over-{fault['index']}").touch()
        self._over.add(fault["index"])
        self.missed += 1

    def _begin(self, fault: dict[str, Any], pid: int) -> "_UnderWay":
        agent = self._agents[fault["slot"] // self._shape.slots]
        begun = _UnderWay(pid, agent, time.monotonic(), self._left())
        match fault["act"]:
            case "launcher":
                self._struck_launcher = True
                self._launcher.kill()
            case "pod":
                agent.kill()
            case "leave":
                agent.send(signal.SIGTERM)
            case "freeze":
                begun.frozen = [
                    agent.pid,
                    *(child.pid for child in psutil.Process(agent.pid).children(recursive=True)),
                ]
                _signal_all(begun.frozen, signal.SIGSTOP)
        return begun

    def _is_over(self, fault: dict[str, Any], begun: "_UnderWay") -> bool:
        """Whether nothing more comes of the fault; lets go on what was stopped, when it is time."""
        waited = time.monotonic() - begun.at
        match fault["act"]:
            case "kill" | "stop":
                return not _lives(begun.pid)
            case "pod" | "leave":
                return begun.agent.process.poll() is not None
            case "freeze" if waited >= fault["more_s"]:
                _signal_all(begun.frozen, signal.SIGCONT)
                return True
            case "pulse" if waited >= fault["more_s"]:
                _signal_all([begun.pid], signal.SIGCONT)
                return True
            case "wake":
                if begun.noticed is None and self._left() != begun.left:
                    begun.noticed = time.monotonic()
                if begun.noticed is not None and time.monotonic() - begun.noticed >= fault["more_s"]:
                    _signal_all([begun.pid], signal.SIGCONT)
                    return True
            case "launcher":
                return True
        return False

    def _left(self) -> set[str]:
        """Formations that a rank has left because of a loss."""
        return {path.name for path in self._directory.glob("left-*")}


@dataclass
class _UnderWay:
    """A fault that has begun. `left`: the formations that had been left then."""

    pid: int
    agent: PodProcess
    at: float
    left: set[str]
    frozen: list[int] = field(default_factory=list)
    noticed: float | None = None


def _written(plans: Sequence[Sequence[Fault]]) -> list[dict[str, Any]]:
    """As `support.elastic_training` reads it."""
    found: list[dict[str, Any]] = []
    for window, plan in enumerate(plans):
        first = len(found)
        for fault in plan:
            one = {**vars(fault), "index": len(found), "window": window}
            one["number"] = window * elastic_training.WINDOW + fault.number if fault.on in ("step", "commit") else 0
            if fault.follows:
                one["after"] = first
            found.append(one)
    return found


def _events(directory: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(directory.glob("events-*")):
        _, slot, pid = path.name.split("-")
        for line in path.read_text().splitlines():
            with suppress(ValueError):  # cut by the process's end
                found.append({**json.loads(line), "slot": int(slot), "pid": int(pid)})
    return sorted(found, key=lambda one: one["at"])


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal_all(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
