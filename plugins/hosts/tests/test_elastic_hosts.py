"""Elastic runs over hosts that come, go, fail and fall silent: network namespaces, with Debian's sshd.

Judged by the samples of each step, and by the final weights' bits beside a training that nobody disturbs.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from sshd import PORT, SshHosts, ssh_hosts, why_no_sshd
from support import planned_training
from support.commands import completed
from support.elastic_training import ledger_of
from support.gang import DEADLINE_S, runs, until
from support.namespaces import HostNet
from support.planned_changes import undisturbed
from support.planned_training import STEPS

pytestmark = pytest.mark.skipif(bool(why_no_sshd()), reason=why_no_sshd() or "there is sshd")
HOROVODRUN = str(Path(sys.executable).parent / "horovodrun")
TRAINING = (sys.executable, planned_training.__file__)
TESTS = str(Path(__file__).parents[3] / "tests")
_SEEDS = (0, 3)  # of arrays and of the host optimizer; test_planned_changes.py has PyTorch


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with ssh_hosts(tmp_path_factory.mktemp("ssh"), 3) as made:
        yield made


class HostRun:
    """`horovodrun` on the first host, with a discovery script that prints what `list` was given last."""

    def __init__(self, hosts: SshHosts, directory: Path, kind: str = "host") -> None:
        self.hosts, self.directory, self.kind = hosts, directory, kind
        script = directory / "hosts.sh"
        script.write_text(f"#!/bin/sh\ncat {directory}/hosts\n")
        script.chmod(0o755)

    def name_of(self, host: str) -> str:
        """The host name that processes on `host` see."""
        return self.net(host).name

    def net(self, host: str) -> HostNet:
        if host == "localhost":
            return self.hosts.here
        return self.hosts.network.hosts[1 + list(self.hosts.names).index(host)]

    def hold(self, worlds: dict[int, Sequence[str]]) -> None:
        """Steps that are made only when the world's ranks are on these hosts."""
        held = {step: [self.name_of(host) for host in world] for step, world in worlds.items()}
        (self.directory / "holds.json").write_text(json.dumps(held))

    def listed(self, *lines: str) -> None:
        draft = self.directory / "hosts.new"
        draft.write_text("".join(f"{line}\n" for line in lines))
        draft.rename(self.directory / "hosts")

    def start(self, *words: str, command: Sequence[str] = TRAINING, **env: str) -> None:
        options = ["--ssh-port", str(PORT), "--ssh-identity-file", str(self.hosts.key), "--start-timeout", "90"]
        settings = {
            "PATH": f"{self.hosts.bin}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")])),
            "DIRECTORY": str(self.directory),
            "KIND": self.kind,
            "OPENBLAS_NUM_THREADS": "1",
            "RINGTRAIN_TIMEOUT": "20",
        }
        self.process = subprocess.Popen(
            [*self.hosts.here.enter, HOROVODRUN, *options, *words, *command],
            cwd=self.directory,
            env={**os.environ, **settings, **env},
            stdout=(self.directory / "out").open("w"),
            stderr=(self.directory / "err").open("w"),
        )

    @property
    def script(self) -> tuple[str, str]:
        return "--host-discovery-script", "./hosts.sh"

    def step(self, number: int) -> None:
        """Wait until the step has been made."""
        self.until(f"step {number}", lambda: (self.directory / f"step-{number}").exists())

    def until(self, what: str, condition: Any) -> Any:
        def checked() -> Any:
            assert self.process.poll() is None, f"ended before {what}\n{self.said()}"
            return condition()

        try:
            return until(what, checked, 2 * DEADLINE_S)
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{self.said()}") from exc

    def said(self) -> str:
        logs = [self.directory / "out", self.directory / "err"]
        return "\n-----\n".join(path.read_text()[-4000:] for path in logs)

    def err(self) -> str:
        return (self.directory / "err").read_text()

    def end(self) -> None:
        """The run succeeds, each sample counted in its step, and the weights are those of an undisturbed run."""
        code = self.process.wait(3 * DEADLINE_S)
        assert code == 0, self.said()
        ends = [json.loads(path.read_text()) for path in self.directory.glob("end-*.json")]
        assert ends, self.said()
        for one in ends:
            assert one["ledger"] == ledger_of(STEPS)
            assert one["digest"] == undisturbed(self.kind)

    def redone(self) -> list[dict[str, Any]]:
        """Return the events of work that the run repeated or began again from the start."""
        lines = [line for path in self.directory.glob("events-*") for line in path.read_text().splitlines()]
        events = [json.loads(line) for line in lines]
        anew = [one for one in events if one.get("entered", 0) > 1 and not one.get("step")]
        return [one for one in events if one.get("redone")] + anew

    def processes(self, host: str) -> list[psutil.Process]:
        """Return the processes of this run on `host`."""
        listed = completed(["ip", "netns", "pids", self.net(host).name])
        found = []
        for pid in listed.stdout.split():
            try:
                process = psutil.Process(int(pid))
                words = process.cmdline()
                if "ringtrain" in words or planned_training.__file__ in words or words[:2] == ["sh", "-c"]:
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def rank_on(self, host: str) -> psutil.Process:
        found = [one for one in self.processes(host) if planned_training.__file__ in one.cmdline()[:3]]
        return found[0]

    def gone(self, host: str) -> None:
        """Wait until nothing of this run is left on a host."""
        self.until(f"nothing on {host}", lambda: not self.processes(host))


@pytest.fixture
def run(hosts: SshHosts, tmp_path: Path) -> Iterator[HostRun]:
    one = HostRun(hosts, tmp_path)
    yield one
    if one.process.poll() is None:
        one.process.kill()
        one.process.wait()


def test_hosts_come_and_go(run: HostRun) -> None:
    """No step is lost, though at last no host is one of the first; where none is listed, nothing is left."""
    worlds = {
        8: ["node-a", "node-a", "node-b"],
        16: ["node-b"],
        24: ["node-b", "node-c", "node-c"],
        32: ["node-c"],
        40: ["node-c", "localhost"],
    }
    run.hold(worlds)
    run.listed("node-a:2")
    run.start("-np", "2", "--min-np", "1", "--max-np", "3", *run.script)
    for step, lines in zip(
        worlds,
        [("node-a:2", "node-b"), ("node-b",), ("node-b", "node-c:2"), ("node-c",), ("node-c", "localhost")],
        strict=True,
    ):
        run.step(step - 1)
        run.listed(*lines)
        run.step(step)
        for host in ("node-a", "node-b"):
            if not any(line.startswith(host) for line in lines):
                run.gone(host)
    run.end()
    assert run.redone() == []


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_history_of_hosts(run: HostRun, seed: int) -> None:
    """Whatever hosts are listed, one after the other, and whichever ranks are killed: each sample counts once."""
    chance = random.Random(f"hosts {seed}")
    names = [*run.hosts.names, "localhost"]
    run.kind = chance.choice(["host", "arrays", "torch"])
    worlds: dict[int, dict[str, int]] = {}
    for step in range(1, STEPS - 8, 9):
        listed = chance.sample(names, chance.randint(1, 4))
        worlds[step] = {host: chance.randint(1, 2) for host in listed}
    worlds[1].setdefault("node-a", 1)  # the first answer names another host
    run.hold({step: [host for host, slots in world.items() for _ in range(slots)] for step, world in worlds.items()})
    struck: set[str] = set()
    for step, world in worlds.items():
        run.listed(*(f"{host}:{slots}" for host, slots in world.items()))
        if step == 1:
            begin = str(sum(world.values()))
            run.start("-np", begin, "--min-np", "1", "--max-np", "8", *run.script)
        run.step(step + 2)
        # Of a host on which something fails twice no ranks are wanted for a while.
        if (left := [host for host in world if host not in struck]) and sum(world.values()) > 1:
            struck.add(host := chance.choice(left))
            run.rank_on(host).kill()
        run.step(step + 6)
    run.end()
    assert all(one.get("redone", 0) <= 1 and one["step"] for one in run.redone()), run.redone()


def test_ranks_ssh_and_hosts_that_are_lost(run: HostRun) -> None:
    """A killed rank is replaced where it was. Where ssh is killed, the host leaves at a commit and comes back. A
    host that falls silent is gone, and back with its cable; each sample counts once, whatever was done again."""
    three = ["node-a", "node-b", "node-c"]
    run.hold({8: three, 16: three, 24: three, 32: ["node-a", "node-b"], 40: three})
    run.listed(*three)
    run.start("-np", "3", "--min-np", "1", *run.script, RINGTRAIN_TIMEOUT="12")
    run.step(10)
    run.rank_on("node-b").kill()
    run.step(16)
    below = psutil.Process(run.process.pid).children(recursive=True)
    (ssh,) = [one for one in below if one.name() == "ssh" and "node-a" in one.cmdline()]
    made_again = len(run.redone())
    ssh.kill()
    run.until("a rank of the host's next agent", lambda: "trying host node-a again" in run.err())
    run.step(24)
    assert len(run.redone()) == made_again
    lost = run.processes("node-c")
    run.hosts.network.cut(run.net("node-c"))
    try:
        run.step(32)
    finally:
        run.hosts.network.mend(run.net("node-c"))
    run.step(40)
    run.end()
    until("no process of the lost host", lambda: not any(runs(process) for process in lost))
    assert all(one.get("redone", 0) <= 1 and one["step"] for one in run.redone())


def test_hosts_that_do_not_answer(run: HostRun) -> None:
    """One without a name, and one that is silent: the others train, and both are said."""
    run.hosts.network.cut(run.net("node-c"))
    try:
        run.listed("node-z:2", "node-c", "node-a:2", "localhost")
        run.hold({2: ["node-a", "node-a", "localhost"]})
        run.start("-np", "3", "--min-np", "2", "--max-np", "6", *run.script)
        run.step(2)
        run.end()
        assert "cannot reach host node-z over ssh: " in run.err()
        assert "host node-z has failed once and gets no ranks for 10 s" in run.err()
    finally:
        run.hosts.network.mend(run.net("node-c"))


def test_a_host_that_fails_is_set_aside(run: HostRun) -> None:
    """For the cool-down: others train on; then it gets ranks again."""
    # The host falls silent while step 12 waits for that: later it may be back.
    run.hold({8: ["node-a", "node-b"], 12: ["node-a"], 30: ["node-a", "node-b"]})
    run.listed("node-a", "node-b")
    words = ["-np", "2", "--min-np", "1", "--on-loss", "Shrink", "--blacklist-cooldown-range", "5", "60"]
    run.start(*words, *run.script)
    run.step(10)
    run.rank_on("node-b").kill()
    run.until("a host set aside", lambda: "host node-b has failed once and gets no ranks for 5 s" in run.err())
    run.step(30)
    run.end()


def test_a_host_whose_ranks_cannot_start(run: HostRun) -> None:
    """Others train to the end, without a --blacklist-cooldown-range too."""
    fails = f'[ "$(hostname)" = {run.name_of("node-b")} ] && exit 7; exec {" ".join(TRAINING)}'
    run.hold({2: ["node-a"]})
    run.listed("node-b", "node-a")
    run.start("-np", "1", "--min-np", "1", "--max-np", "2", *run.script, command=("sh", "-c", fails))
    run.end()
    assert "host node-b has failed 2 times and gets no ranks for 10 s" in run.err()


def test_fixed_hosts(run: HostRun) -> None:
    """`-H` with the bounds of an elastic run: as Horovod, a script that always prints them."""
    run.hold({8: ["node-a", "node-b"], 20: ["node-a", "node-b"]})
    run.start("-np", "2", "--min-np", "1", "-H", "node-a:1,node-b:1")
    run.step(10)
    run.rank_on("node-b").kill()
    run.end()


def test_a_program_that_is_started_again(run: HostRun) -> None:
    """With --on-loss Restart any program goes on in the next world, on all hosts."""
    says = 'cd "$DIRECTORY"; touch $RINGTRAIN_FORMATION-$RANK-$(hostname); until [ -e end ]; do sleep 0.1; done'
    run.listed("node-a", "node-b")
    run.start("-np", "2", "--on-loss", "Restart", *run.script, command=("sh", "-c", says))

    def up(formation: int) -> list[str]:
        found = sorted(path.name.split("-", 2)[2] for path in run.directory.glob(f"{formation}-*"))
        return found if len(found) == 2 else []

    both = [run.name_of("node-a"), run.name_of("node-b")]
    assert run.until("the first world", lambda: up(1)) == both
    next(one for one in run.processes("node-b") if one.cmdline()[:2] == ["sh", "-c"]).kill()
    assert run.until("the next one", lambda: up(2)) == both
    (run.directory / "end").touch()
    assert run.process.wait(DEADLINE_S) == 0, run.said()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_a_run_that_ends_early_leaves_nothing(run: HostRun, number: signal.Signals) -> None:
    """Neither on other hosts nor here."""
    run.hold({8: []})
    run.listed("node-a:2", "localhost")
    run.start("-np", "3", "--min-np", "1", *run.script)
    run.step(7)
    left = [one for host in ("node-a", "localhost") for one in run.processes(host)]
    assert len(left) > 6
    run.process.send_signal(number)
    code = run.process.wait(DEADLINE_S)
    assert code == (130 if number == signal.SIGINT else -9), run.said()
    until("nothing left", lambda: not any(runs(process) for process in left))
