"""Elastic jobs with a DiLoCo over slow links that fail: histories that follow from seeds, played to their end.

    make elastic-chaos KIND=diloco SEEDS=100       # seeds 0 to 99
    make elastic-chaos KIND=diloco SEED=41         # one of them again

Launcher, agents and ranks are real processes, each pod in a network namespace of its own, behind a line of 16
Mbit/s. Processes are killed and stopped, pods are killed and made anew, more pods join, and lines lose all their
packets for a while, or for good. After each of these the training waits until the world is whole again, without
what is cut off for good. `diloco.training` says how samples are counted. Needs root, ip and tc.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from support.certificates import JobAuthority
from support.deadlines import patient
from support.elastic_pods import GuardedGang
from support.gang import GangProcesses, PodProcess
from support.namespaces import HostNet, Network, network
from support.namespaces import why_not as no_namespaces
from support.seeds import play_histories

from diloco.training import FOLDERS, STEPS, SYNC_EVERY, wrong_in

TIMEOUT_S = 8.0
REPLACE_TIMEOUT_S = 4.0
HISTORY_DEADLINE_S = patient(150.0)
_POLL_S = 0.005
_TOKEN = "token-1"
_ACTS = ("kill", "stop", "wake", "pod", "cut", "cut", "cut", "cut", "part", "launcher-cut", "join")

_SHAPES = ((2, 1), (3, 1), (3, 1), (4, 1), (2, 2))
_OPTIONS: tuple[dict[str, float], ...] = (
    {},
    {},
    {"fragments": 2},
    {"fragments": 2, "overlap_steps": 1, "mix": 0.5},
)


@dataclass(frozen=True)
class Event:
    """One thing that happens when slot `slot` is at inner step `step`, and `delay_s` later.

    `act`: `kill` and `stop` its process (`wake`: for `more_s`); `pod`, whose agent is killed, and made anew after
    `more_s`; `cut`, the lines of its pod lose what goes the `way` "to" or "from" it, or "both"; `part`, its pod
    and pod `other` lose what they send each other; `launcher-cut`; `join`, one more pod is asked for. Cuts end
    after `more_s`, None: never.
    """

    slot: int
    step: int
    delay_s: float
    act: str
    more_s: float | None = 0.0
    way: str = "both"
    other: int = 0


@dataclass(frozen=True)
class History:
    """A job of at most `pods` pods with `slots` ranks each, which begins with `first` of them. `options`: of its
    DiLoCo."""

    pods: int
    slots: int
    first: int
    on_loss: str
    transport: str
    options: Mapping[str, float]
    events: tuple[Event, ...]


def history_of(seed: int) -> History:
    """The history of a seed: one to three events, the last of which may be a cut that never ends."""
    chance = random.Random(f"cuts {seed}")
    pods, slots = chance.choice(_SHAPES)
    events: list[Event] = []
    first = pods
    step = chance.randint(1, 6)
    while step <= STEPS - 3 * SYNC_EVERY and len(events) < 3:
        acts = [act for act in _ACTS if not (act == "join" and (first < pods or pods == 2 or events))]
        acts = [act for act in acts if not (act == "part" and pods < 3)]
        act = chance.choice(acts)
        if act == "join":
            first = pods - 1
        pod = chance.randrange(first if not events else pods)
        slot = pod * slots + chance.randrange(slots)
        other = chance.choice([one for one in range(pods) if one != pod])
        longest = chance.choice([TIMEOUT_S / 4, TIMEOUT_S, 2 * TIMEOUT_S])
        more_s: float | None = chance.uniform(0.1, longest)
        is_last = step + 8 > STEPS - 3 * SYNC_EVERY or len(events) == 2
        if act == "cut" and is_last and chance.random() < 0.6:
            more_s = None
        events.append(
            Event(
                slot,
                step,
                chance.uniform(0, 0.12),
                act,
                more_s,
                chance.choice(["both", "both", "to", "from"]),
                other,
            )
        )
        # With two pods one after the other: where both are lost at once, so is the training.
        step += chance.choice([1, 5, 9, 12] if pods > 2 and len(events) < 2 else [9, 12])
    on_loss = chance.choice(["Replace", "Shrink"])
    options = random.Random(f"options {seed}").choice(_OPTIONS)
    return History(pods, slots, first, on_loss, "auto" if slots > 1 else "grpc", options, tuple(events))


def why_not() -> str:
    """Return the reason that no histories can be played here; empty if they can."""
    return no_namespaces() or ("" if shutil.which("tc") else "lines are cut with `tc` (apt install iproute2)")


def judge(seed: int) -> str:
    """Play the history of a seed. Return its first error and the log; empty if there is no error."""
    history = history_of(seed)
    with tempfile.TemporaryDirectory(prefix="cuts-") as folder, network(history.pods + 1) as net:
        playing = _Playing(history, net, Path(folder))
        try:
            problem = playing.run()
        finally:
            playing.close()
        wrong = problem or wrong_in(Path(folder), 0)
        return "\n".join([f"seed {seed}: {history}: {wrong}", playing.log()]) if wrong else ""


class _Playing:
    def __init__(self, history: History, net: Network, directory: Path) -> None:
        self._history, self._net, self._directory = history, net, directory
        self._asked = history.first
        for host in net.hosts:
            net.thin(host)
        authority = JobAuthority("uid-1")
        for role in ("launcher", "worker"):
            authority.secret_dir(directory / role, role, token=_TOKEN)
        self._job = GangProcesses(
            directory,
            history.pods,
            history.slots,
            DIRECTORY=str(directory),
            FAULTS=",".join(
                f"{e.slot}:{e.step}:{e.delay_s:.4f}:{'stop' if e.act == 'wake' else e.act}" for e in history.events
            ),
            HOLDS=str(2 * SYNC_EVERY),
            COPIES=str(history.pods * history.slots - 1),
            OPTIONS=json.dumps(history.options),
            MORE="10000",
            PYTHONPATH=os.pathsep.join(filter(None, [*FOLDERS, os.environ.get("PYTHONPATH")])),
            OPENBLAS_NUM_THREADS="1",
            RINGTRAIN_TRANSPORT=history.transport,
            RINGTRAIN_TIMEOUT=str(TIMEOUT_S),
            RINGTRAIN_START_TIMEOUT="60",
            RINGTRAIN_ELASTIC=history.on_loss,
            RINGTRAIN_ELASTIC_MIN_RANKS="1",
            RINGTRAIN_ELASTIC_MAX_RANKS=str(history.pods * history.slots),
            RINGTRAIN_ELASTIC_START_RANKS=str(history.first * history.slots),
            RINGTRAIN_ELASTIC_REPLACE_TIMEOUT=str(REPLACE_TIMEOUT_S),
            RINGTRAIN_ELASTIC_JOIN_DELAY="0.2",
            RINGTRAIN_ELASTIC_FORMATION_LIMIT="1000",
        )
        self._job.settings["RINGTRAIN_LAUNCHER_ADDRESS"] = f"{net.hosts[0].address}:{self._job.control_port}"
        self._gang = GuardedGang(self._job, "diloco.training")
        self._launcher = self._gang.start(
            self._job.launcher(
                inside=net.hosts[0].enter,
                RINGTRAIN_SECRET_DIR=str(directory / "launcher"),
            )
        )
        self._agents: dict[int, PodProcess] = {}
        self._absent: dict[int, float] = {}  # pods, and when they are made anew
        self._gone: set[int] = set()  # pods that are cut off for good
        self._begun: dict[int, float] = {}
        self._pids: dict[int, int] = {}
        self._over: set[int] = set()
        self._expect()

    def run(self) -> str:
        """Until the job has ended; why it has not ended well, or nothing."""
        end = time.monotonic() + HISTORY_DEADLINE_S
        while (code := self._launcher.process.poll()) is None:
            if time.monotonic() > end:
                self._gang.show_stacks()
                return f"the job hangs; over are {sorted(self._over)} of {len(self._history.events)} events"
            self._look()
            for index, event in enumerate(self._history.events):
                if index not in self._over:
                    self._go_on(index, event)
            time.sleep(_POLL_S)
        return "" if code == 0 else f"the job has ended with {code}"

    def _look(self) -> None:
        """As the operator: a pod for each worker that is asked for, in the place of one that has ended."""
        now = time.monotonic()
        for index in range(self._asked):
            agent = self._agents.get(index)
            if agent is not None and agent.process.poll() is None:
                continue
            if now >= self._absent.get(index, 0.0) and self._launcher.process.poll() is None:
                command = (sys.executable, "-m", "diloco.training", "--train")
                host, secrets = self._host(index), str(self._directory / "worker")
                pod = self._job.agent(
                    index,
                    *command,
                    inside=host.enter,
                    RINGTRAIN_POD_IP=host.address,
                    RINGTRAIN_SECRET_DIR=secrets,
                )
                self._agents[index] = self._gang.start(pod)

    def _go_on(self, index: int, event: Event) -> None:
        fired = self._directory / f"fired-{index}"
        if index not in self._begun:
            if fired.exists() and (pid := int(fired.read_text() or 0)):
                self._begun[index] = time.monotonic() + event.delay_s
                self._pids[index] = pid
            return
        since = time.monotonic() - self._begun[index]
        struck = self._directory / f"struck-{index}"
        if since >= 0 and not struck.exists():
            struck.touch()
            self._strike(event)
        if since < 0 or (event.more_s is not None and since < event.more_s):
            return
        self._mend(index, event)
        self._expect()
        (self._directory / f"over-{index}").touch()
        self._over.add(index)

    def _expect(self) -> None:
        """Write down how many ranks the world shall have."""
        draft = self._directory / "expected.new"
        draft.write_text(str((self._asked - len(self._gone)) * self._history.slots))
        draft.rename(self._directory / "expected")

    def _strike(self, event: Event) -> None:
        pod = event.slot // self._history.slots
        match event.act:
            case "pod":
                self._absent[pod] = time.monotonic() + (event.more_s or 0.0)
                self._agents[pod].kill()
            case "cut":
                self._net.drop(self._host(pod), event.way)
            case "launcher-cut":
                self._net.drop(self._net.hosts[0], event.way)
            case "part":
                self._net.part(self._host(pod), self._host(event.other))
            case "join":
                self._asked = self._history.pods
                self._put(self._asked)

    def _mend(self, index: int, event: Event) -> None:
        pod = event.slot // self._history.slots
        match event.act:
            case "wake":
                with suppress(ProcessLookupError):
                    os.kill(self._pids[index], signal.SIGCONT)
            case "cut" if event.more_s is None:
                self._gone.add(pod)
            case "cut":
                self._net.thin(self._host(pod))
            case "launcher-cut":
                self._net.thin(self._net.hosts[0])
            case "part":
                self._net.join(self._host(pod), self._host(event.other))

    def _put(self, workers: int) -> None:
        script = (
            "import json, sys, urllib.request as r\n"
            "headers = {'Authorization': 'Bearer ' + sys.argv[3]}\n"
            "r.urlopen(r.Request(sys.argv[1], sys.argv[2].encode(), headers, method='PUT'), timeout=30)"
        )
        url = f"http://127.0.0.1:{self._job.status_port}/workers"
        words = [*self._net.hosts[0].enter, sys.executable, "-c", script, url, json.dumps({"workers": workers})]
        subprocess.run([*words, _TOKEN], check=True)

    def _host(self, pod: int) -> HostNet:
        return self._net.hosts[1 + pod]

    def log(self) -> str:
        """The end of what launcher, agents and ranks have said, and what ranks have noted."""
        events = sorted(self._directory.glob("events-*"))
        noted = [f"{path.name}\n{path.read_text()[-1500:]}" for path in events]
        return "\n-----\n".join([self._gang.log(self._launcher), *noted])

    def close(self) -> None:
        """Leave nothing behind."""
        self._gang.close()


def _told(seed: int) -> str:
    history = history_of(seed)
    acts = [event.act for event in history.events]
    acts += [f"{name}={value}" for name, value in history.options.items()]
    return " ".join(acts)


if __name__ == "__main__":
    if problem := why_not():
        sys.exit(problem)
    play_histories("20", judge, _told)
