"""Processes that get SIGTERM when a rank is stopped, and the rank's end: real processes, started in all ways."""

import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from support.gang import runs, until

from ringtrain_job.agent.stopping import RankStop

# A rank's program: what it is, and the file in which it tells what happens to it.
PROGRAM = """
import os, signal, sys, time

kind, log = sys.argv[1:]


def say(word):
    with open(log, "a") as file:
        file.write(word + "\\n")


got = []


def asked(*_):
    got.append(1)
    say("SIGTERM")
    if len(got) == 2:
        say("quits")
        os._exit(1)


def worker():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    say("worker")
    while True:
        time.sleep(0.01)


workers = []
if kind in ("loader", "loader-default"):
    for _ in range(2):
        workers.append(os.fork())
        if workers[-1] == 0:
            worker()
if kind == "ignores":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif kind in ("saves", "loader"):
    signal.signal(signal.SIGTERM, asked)
say("ready")
while not got:
    time.sleep(0.01)
time.sleep(0.3)
print("saved", flush=True)  # a pipe that was closed ends the program here
if any(os.waitpid(pid, os.WNOHANG)[0] for pid in workers):
    say("workers died")
say("saved")
"""
KINDS = ("saves", "loader", "loader-default", "ignores", "default")

P = f"{sys.executable} program.py KIND LOG"
STARTS = {
    "direct": P.split(),
    "exec": ["bash", "-c", f"exec {P}"],
    "script": ["bash", "run.sh", *P.split()],
    "list": ["sh", "-c", f"cd .; {P}; echo end >> LOG"],
    "pipe": ["bash", "-c", f"{P} 2>&1 | tee LOG.tee"],
    "setsid": ["sh", "-c", f"setsid {P}; echo end >> LOG"],
    "exit-trap": ["bash", "-c", f"trap 'echo cleanup >> LOG' EXIT; {P}; echo end >> LOG"],
    "term-trap": ["bash", "-c", f"trap 'echo trap >> LOG' TERM; {P}; echo end >> LOG"],
    "wait-trap": ["bash", "-c", f"{P} & trap 'kill -TERM %1; wait %1' TERM; wait %1; echo end >> LOG"],
    "timeout": ["timeout", "600", *P.split()],
    "parent": [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *P.split()],
    "two-shells": ["bash", "-c", f"bash run.sh {P} | cat; echo end >> LOG"],
}


@dataclass
class Rank:
    """A rank that runs, and what is known of it."""

    process: subprocess.Popen[bytes]
    log: Path
    stop: RankStop

    @classmethod
    def start(cls, words: list[str], kind: str, folder: Path) -> "Rank":
        log = folder / f"{kind}.log"
        command = [word.replace("KIND", kind).replace("LOG", str(log)) for word in words]
        process = subprocess.Popen(command, cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL)
        return cls(process, log, RankStop(process.pid))

    def said(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def is_ready(self) -> bool:
        said = self.said()
        return "ready" in said and said.count("worker") == (2 if "loader" in self.log.name else 0)

    def has_ended(self) -> bool:
        """Return whether the agent would report the end: the first process was reaped, and nothing is left to wait
        for."""
        ended = self.process.poll() is not None
        return self.stop.advance() and ended

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]


@pytest.mark.parametrize("start", STARTS)
def test_who_gets_sigterm(start: str, tmp_path: Path) -> None:
    """A program that handles SIGTERM gets exactly one, for each way to start it; its workers and enclosing scripts get
    none."""
    if shutil.which("setsid") is None:
        pytest.skip("needs util-linux")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "run.sh").write_text('set -e\necho start\n"$@"\necho end >> "${@: -1}"\n')
    ranks = {kind: Rank.start(STARTS[start], kind, tmp_path) for kind in KINDS}
    for rank in ranks.values():
        until("the program", rank.is_ready)
    left = [process for rank in ranks.values() for process in rank.processes()]
    for kind, rank in ranks.items():
        rank.stop.request(1.0 if kind == "ignores" else 60.0)
    for rank in ranks.values():
        rank.stop.request(0.0)  # somebody else asks, too: that changes nothing
        until("the rank's end", rank.has_ended)
    said = {kind: [word for word in rank.said() if word not in ("ready", "worker")] for kind, rank in ranks.items()}
    ends = {"script", "list", "setsid", "exit-trap", "term-trap", "wait-trap", "two-shells"}
    after = ["end"] * (2 if start == "two-shells" else 1) if start in ends else []
    after += ["cleanup"] if start == "exit-trap" else []
    assert said["saves"] == said["loader"] == ["SIGTERM", "saved", *after]
    assert ranks["saves"].process.returncode == (-signal.SIGTERM if start == "parent" else 0)
    assert [ranks[kind].stop.sent for kind in ("saves", "ignores")] == [
        {signal.SIGTERM},
        {signal.SIGTERM, signal.SIGKILL},
    ]
    if start not in ("exit-trap", "term-trap", "wait-trap"):  # what a shell with a trap does, it does
        assert said["default"] == []
        # SIGTERM to the group may end the inner shell and `cat` before the outer shell has it.
        assert said["ignores"] in ([[], ["end"]] if start == "two-shells" else [[]])
    if start == "pipe":
        assert (tmp_path / "saves.log.tee").read_text() == "saved\n"
    until("nothing is left", lambda: not [process for process in left if runs(process)])


LEAVES = """
import os, signal, subprocess, sys
rest = f"trap 'echo asked >> {sys.argv[1]}' TERM; echo rest >> {sys.argv[1]}; while :; do sleep 0.05; done"
for own in (False, True):
    subprocess.Popen(["bash", "-c", rest], start_new_session=own)
signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
open(sys.argv[1], "a").write("ready\\n")
signal.pause()
"""


def test_what_is_left_of_a_rank(tmp_path: Path) -> None:
    """Processes that the rank leaves get SIGTERM at its end, and SIGKILL a second later, even outside its session."""
    rank = Rank.start([sys.executable, "-c", LEAVES, "LOG"], "x", tmp_path)
    until("all", lambda: sorted(rank.said()) == ["ready", "rest", "rest"])
    left = rank.processes()
    rank.stop.request(60.0)
    until("the rank's end", rank.has_ended)
    assert (rank.process.returncode, sorted(rank.said())[:2]) == (3, ["asked", "asked"])
    until("nothing is left", lambda: not [process for process in left if runs(process)])


def test_a_rank_that_is_stopped_by_a_signal(tmp_path: Path) -> None:
    """SIGTERM reaches it: it goes on for that."""
    (tmp_path / "program.py").write_text(PROGRAM)
    rank = Rank.start(P.split(), "saves", tmp_path)
    until("the program", rank.is_ready)
    rank.process.send_signal(signal.SIGSTOP)
    until("it stands", lambda: psutil.Process(rank.process.pid).status() == psutil.STATUS_STOPPED)
    rank.stop.request(60.0)
    until("the rank's end", rank.has_ended)
    assert rank.said()[1:] == ["SIGTERM", "saved"]


def test_a_person_does_not_wait(tmp_path: Path) -> None:
    """`kill` immediately ends processes that have a stop request."""
    (tmp_path / "program.py").write_text(PROGRAM)
    rank = Rank.start(STARTS["list"], "ignores", tmp_path)
    until("the program", rank.is_ready)
    left = rank.processes()
    rank.stop.request(600.0)
    rank.stop.kill()
    until("the rank's end", rank.has_ended)
    until("nothing is left", lambda: not [process for process in left if runs(process)])


def test_the_next_program_of_a_script(tmp_path: Path) -> None:
    """The second program gets a separate SIGTERM: the script had a stop request, and started it nevertheless."""
    (tmp_path / "program.py").write_text(PROGRAM)
    rank = Rank.start(["sh", "-c", f"{P}; {P}; echo end >> LOG"], "saves", tmp_path)
    until("the program", rank.is_ready)
    rank.stop.request(60.0)
    until("the rank's end", rank.has_ended)
    assert [word for word in rank.said() if word != "ready"] == ["SIGTERM", "saved", "SIGTERM", "saved", "end"]
