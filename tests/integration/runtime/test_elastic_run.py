"""Elastic runs on this machine: `ringtrain run` with real launcher, agent and processes that come and go."""

import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support import elastic_rank
from support.commands import completed, ringtrain_run
from support.gang import DEADLINE_S, pid_runs, runs, until

from ringtrain_job.logs.events import read_log_events
from ringtrain_job.logs.layout import AttemptFiles

RANK = (sys.executable, str(Path(elastic_rank.__file__)))
LINE = re.compile(r"formation (\d+) rank (\d+) of (\d+) generation \d+ pid (\d+)")


class Run:
    """`ringtrain run` of the rank program that speaks the socket's protocol and prints its worlds."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.directory = directory
        env = {"DIRECTORY": str(directory), "RINGTRAIN_TIMEOUT": "12"}
        self.process = ringtrain_run(directory, "--name", "demo", *words, *RANK, **env)

    def log(self, slot: int) -> str:
        path = self.directory / f"runs/local/demo/1/rank-{slot:04d}.log"
        return path.read_text() if path.exists() else ""

    def worlds(self, slot: int) -> list[tuple[int, int, int, int]]:
        """The worlds that processes of a slot were in: formation, rank, size, process id."""
        return [(int(a), int(b), int(c), int(d)) for a, b, c, d in LINE.findall(self.log(slot))]

    def world(self, *slots: int, after: int = 0) -> int:
        """Wait until exactly `slots` are in one formation above `after`; its number."""

        def formed() -> int:
            last = {slot: found[-1] for slot in slots if (found := self.worlds(slot))}
            formations = {world[0] for world in last.values()}
            whole = len(last) == len(slots) == next(iter(last.values()))[2] if last else False
            return max(formations) if whole and len(formations) == 1 and max(formations) > after else 0

        return until(f"a world of slots {slots} after {after}", formed)

    def pid(self, slot: int) -> int:
        return self.worlds(slot)[-1][3]

    def finish(self, slots: int) -> tuple[int, str, str]:
        """Have every rank end with 0; exit status and what the run printed."""
        for slot in range(slots):
            (self.directory / f"end-{slot}").touch()
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out, err


StartRun = Callable[..., Run]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[StartRun]:
    made: list[Run] = []

    def start(*words: str) -> Run:
        made.append(Run(tmp_path, *words))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_replace(run: StartRun, number: int) -> None:
    """A new process takes the lost one's slot and the last rank; the others' processes stay; the log is whole."""
    one = run("-np", "3", "--min-np", "2", "--on-loss", "Replace")
    first = one.world(0, 1, 2)
    before = {slot: one.pid(slot) for slot in range(3)}
    if number == signal.SIGSTOP:
        # Nobody but its peers notices: they find that it does not answer, and leave the world.
        os.kill(before[1], signal.SIGSTOP)
        for slot in (0, 2):
            (one.directory / f"flee-{slot}").touch()
    else:
        os.kill(before[1], number)
    one.world(0, 1, 2, after=first)
    assert (one.pid(0), one.pid(2)) == (before[0], before[2])
    assert one.pid(1) != before[1]
    assert not pid_runs(before[1])
    assert one.worlds(1)[-1][1] == 2
    code, out, err = one.finish(3)
    assert (code, "state  Succeeded" in err) == (0, True)
    merged = Counter(out.splitlines())
    assert merged == Counter(f"[{slot}] {line}" for slot in range(3) for line in one.log(slot).splitlines())


def test_shrink(run: StartRun) -> None:
    """The others go on at once, and take the one in that comes in the lost one's place. All
    three worlds are on the page's line of time, with the loss and the recovery."""
    one = run("-np", "3", "--min-np", "1", "--on-loss", "Shrink")
    first = one.world(0, 1, 2)
    before = {slot: one.pid(slot) for slot in range(3)}
    (one.directory / "slow-0").touch()
    os.kill(before[0], signal.SIGKILL)
    smaller = one.world(1, 2, after=first)
    (one.directory / "slow-0").unlink()
    last = one.world(0, 1, 2, after=smaller)
    assert (one.pid(1), one.pid(2)) == (before[1], before[2])
    assert one.finish(3)[0] == 0
    events = read_log_events(AttemptFiles(one.directory / "runs/local/demo/1"))
    kinds = [event["kind"] for event in events]
    assert kinds.index("Loss") < kinds.index("Recovery") < kinds.index("Succeeded"), events
    assert [event["text"] for event in events if event["kind"] == "Formation"] == [
        f"generation {first}: 3 ranks",
        f"generation {smaller}: 2 ranks",
        f"generation {last}: 3 ranks",
    ]


def test_restart(run: StartRun) -> None:
    """A plain program: all its processes end and start again in the next formation."""
    one = run("-np", "2", "--on-loss", "Restart")
    first = one.world(0, 1)
    before = [psutil.Process(one.pid(slot)) for slot in range(2)]
    os.kill(before[1].pid, signal.SIGKILL)
    one.world(0, 1, after=first)
    assert not [process for process in before if runs(process)]
    assert one.finish(2)[0] == 0


def test_a_discovery_script(run: StartRun, tmp_path: Path) -> None:
    """The world has as many ranks as the script prints: 2, 4, 1, 3; who stays keeps its process."""
    script, hosts = tmp_path / "hosts.sh", tmp_path / "hosts"
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    formation = 0
    one: Run | None = None
    for count in (2, 4, 1, 3):
        draft = tmp_path / "hosts.new"
        draft.write_text(f"localhost:{count}\n")
        draft.rename(hosts)
        if one is None:
            one = run("-np", "2", "--min-np", "1", "--max-np", "4", "--host-discovery-script", "./hosts.sh")
        formation = one.world(*range(count), after=formation)
    assert one is not None
    assert len({world[3] for world in one.worlds(0)}) == 1
    assert len({world[3] for world in one.worlds(1)}) == 2
    assert "leaves: the next generation does not use this slot" in one.log(3)
    assert one.finish(4)[0] == 0


def test_a_program_that_fails_again_and_again(run: StartRun) -> None:
    """It is not started for ever: the run fails with its exit status, and says which rank it was."""
    one = run("-np", "2", "--min-np", "1")
    one.world(0, 1)
    for slot in range(2):
        (one.directory / f"fail-{slot}").touch()
    _, err = one.process.communicate(timeout=DEADLINE_S)
    assert one.process.returncode == 3
    assert "First failure: rank " in err


def test_interrupted(run: StartRun) -> None:
    """Ctrl-C ends an elastic run like any other."""
    one = run("-np", "2", "--min-np", "1")
    one.world(0, 1)
    began = time.monotonic()
    one.process.send_signal(signal.SIGINT)
    _, err = one.process.communicate(timeout=DEADLINE_S)
    assert (one.process.returncode, "state  Stopped" in err) == (130, True)
    assert time.monotonic() - began < DEADLINE_S


def test_a_run_within_a_run(tmp_path: Path) -> None:
    """A run that a rank starts is one of its own: it is not elastic because the outer one is."""
    inner = 'echo "rank $RANK of $WORLD_SIZE, elastic: ${RINGTRAIN_ELASTIC-no}, slot: ${RINGTRAIN_SLOT-none}"'
    ringtrain = [sys.executable, "-m", "ringtrain", "run", "-q", "-np", "1"]
    done = completed(
        [*ringtrain, "--on-loss", "Restart", *ringtrain, "sh", "-c", inner], cwd=tmp_path, timeout=DEADLINE_S
    )
    assert (done.returncode, done.stdout) == (0, "[0] [0] rank 0 of 1, elastic: no, slot: none\n")


def test_a_world_below_max_np_shows_its_progress(tmp_path: Path) -> None:
    """Steps are complete when the ranks of the world have reported them, not all ranks that it may have."""
    train = "import ringtrain as rt; rt.init(); [rt.report(step, samples=8, loss=0.5) for step in (1, 2, 3)]"
    out, err = ringtrain_run(
        tmp_path, "-np", "1", "--min-np", "1", "--max-np", "2", sys.executable, "-c", train
    ).communicate(timeout=DEADLINE_S)
    assert "starting 1 rank\n" in out + err
    assert re.search(r"^Step \d  .*loss: 0.500$", out, re.MULTILINE), out + err
