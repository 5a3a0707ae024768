"""A program that saves when it is asked to stop, and quits when it is asked again, in whole jobs: it is asked once."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.commands import ringtrain_run
from support.gang import DEADLINE_S, GangProcesses, runs, until

SAVES = """
import os, signal, time
asked = []
def save(*_):
    print("SIGTERM", flush=True)
    asked.append(1)
    if len(asked) == 2:
        os._exit(9)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while not asked:
    time.sleep(0.05)
until = time.monotonic() + 1.5
while time.monotonic() < until:
    time.sleep(0.05)
print("saved", flush=True)
"""
WHOLE = ["ready", "SIGTERM", "saved", "end"]
STARTS = {
    "script": ["bash", "run.sh"],
    "pipe": ["bash", "-c", f"set -o pipefail; {sys.executable} save.py 2>&1 | tee -a log && echo end"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the program and its script."""
    (tmp_path / "save.py").write_text(SAVES)
    (tmp_path / "run.sh").write_text(f"set -e\n{sys.executable} save.py\necho end\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("asked", ["launcher", "worker", "all", "all-again"])
def test_a_job_is_asked_to_stop(gang: Callable[..., GangProcesses], folder: Path, start: str, asked: str) -> None:
    """By the deletion of some or all of its pods, and by SIGTERM once more, as of a kubelet that was started again."""
    job = gang(2, 1, RINGTRAIN_TIMEOUT="60")
    launcher, agents = job.launcher(), job.agents(*STARTS[start])
    until("both ranks ready", lambda: job.rank_log(0) == job.rank_log(1) == b"ready\n")
    for pod in {"launcher": [launcher], "worker": agents[:1]}.get(asked, [launcher, *agents]):
        pod.send(signal.SIGTERM)
    if asked == "all-again":
        until("SIGTERM", lambda: b"SIGTERM" in job.rank_log(0) and b"SIGTERM" in job.rank_log(1))
        for pod in [launcher, *agents]:
            pod.send(signal.SIGTERM)
    assert launcher.wait() == 143
    assert {agent.wait() for agent in agents} <= {75, 143}  # whom the launcher has stopped, and who was asked before
    assert [job.rank_log(rank).decode().split() for rank in range(2)] == [WHOLE, WHOLE]


@pytest.mark.parametrize("elastic", [(), ("--on-loss", "Restart")], ids=["gang", "elastic"])
@pytest.mark.parametrize(
    "then",
    [(), (signal.SIGTERM,), (signal.SIGINT,)],
    ids=["once", "and-by-its-service-manager", "twice"],
)
def test_a_person_stops_a_run(folder: Path, elastic: tuple[str, ...], then: tuple[signal.Signals, ...]) -> None:
    """Ctrl-C lets ranks save; once more, and they are killed."""
    run = ringtrain_run(folder, *elastic, "-np", "2", "-q", *STARTS["script"], PYTHONUNBUFFERED="1")
    assert run.stdout is not None
    said = sorted(run.stdout.readline() for _ in range(2))
    assert said == ["[0] ready\n", "[1] ready\n"]
    ranks = psutil.Process(run.pid).children(recursive=True)
    run.send_signal(signal.SIGINT)
    if then:
        assert sorted(run.stdout.readline() for _ in range(2)) == ["[0] SIGTERM\n", "[1] SIGTERM\n"]
    for number in then:
        run.send_signal(number)
    out, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 130
    assert [f"[{rank}] {word}" in out for rank in range(2) for word in ("saved", "end")] == [
        then != (signal.SIGINT,)
    ] * 4, err
    assert not [process for process in ranks if runs(process)]
