"""The launcher's evaluation of reports while they arrive."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.small_job import environment

from ringtrain_job.control.model import RankPhase, RankState, Registration
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.console import Console
from ringtrain_job.launcher.gang import Gang
from ringtrain_job.launcher.observers import Observers
from ringtrain_job.launcher.progress import ConsoleObserver
from ringtrain_job.launcher.status import LauncherReports, StatusSnapshot
from ringtrain_job.logs.journal import LogStream
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.store import LogChunk, LogStore

CONFIG = LauncherConfig.from_env(environment(1))


@pytest.fixture
def console() -> Iterator[Console]:
    null = os.open(os.devnull, os.O_WRONLY)
    shown = Console(null)
    yield shown
    shown.close(10)
    os.close(null)


def begin(directory: Path, console: Console) -> StatusSnapshot:
    store = LogStore(AttemptFiles.of(directory, "default", "digits", 1), "uid-1", 1)
    snapshot = StatusSnapshot(CONFIG, Gang(CONFIG, time.monotonic), store, LauncherReports(1))
    snapshot.observers = Observers([ConsoleObserver(snapshot, console)])
    snapshot.follow()
    return snapshot


def send(snapshot: StatusSnapshot, first: int, **report: float | str) -> None:
    data = json.dumps(report).encode() + b"\n"
    assert snapshot.store.append(LogChunk(LogStream.REPORT, 0, first, 1, data)) == first


@pytest.mark.parametrize("ago_s", [3600, -3600], ids=["behind", "ahead"])
def test_progress_is_dated_by_the_launcher(tmp_path: Path, console: Console, ago_s: float) -> None:
    """Nodes' clocks may be wrong by any amount: what counts is when the report came."""
    snapshot = begin(tmp_path, console)
    assert snapshot.status()["lastProgressTime"] is None
    before = time.time()
    send(snapshot, 1, step=1, time=before - ago_s)
    assert before <= snapshot.status()["lastProgressTime"] <= time.time()


def test_the_slowest_rank_is_named_with_its_tail(tmp_path: Path, console: Console) -> None:
    """The rank at the lowest step, of those that still run. If two ranks are there, none is named."""
    config = replace(CONFIG, slots=4)
    gang = Gang(config, time.monotonic)
    ranks = (*(RankState(rank, RankPhase.RUNNING) for rank in range(3)), RankState(3, RankPhase.SUCCEEDED, 0))
    joined = Registration("uid-1", 1, 0, 4, "i", "digits-worker-0", "node-a", "::1", 1, (), (), 0, ranks)
    assert gang.register(joined) is None
    store = LogStore(AttemptFiles.of(tmp_path, "default", "digits", 1), "uid-1", 1)
    snapshot = StatusSnapshot(config, gang, store, LauncherReports(4))
    snapshot.observers = Observers([ConsoleObserver(snapshot, console)])
    snapshot.follow()
    assert snapshot.status()["runningSince"] is None

    def report(rank: int, step: int, at: float, number: int = 1) -> None:
        data = json.dumps({"step": step, "time": at}).encode() + b"\n"
        store.append(LogChunk(LogStream.REPORT, rank, number, 1, data))

    for rank, step, at in ((0, 9, 1.0), (1, 7, 3.0), (2, 7, 2.0), (3, 1, 0.0)):
        report(rank, step, at)
    assert snapshot.status()["slowest"] is None
    report(1, 8, 4.0, number=2)
    store.append(LogChunk(LogStream.LOG, 2, 1, 1, b"reading shard 8\n"))
    told = {"rank": 2, "pod": "digits-worker-0", "node": "node-a", "step": 7, "logTail": ["reading shard 8"]}
    assert snapshot.status()["slowest"] == told
    store.close()


def test_a_launcher_that_was_restarted_counts_from_then(tmp_path: Path, console: Console) -> None:
    """A restarted launcher does not know the times of earlier reports: the deadline for progress restarts."""
    first = begin(tmp_path, console)
    send(first, 1, step=1, time=1000.0)
    first.store.close()
    before = time.time()
    second = begin(tmp_path, console)
    status = second.status()
    assert status["progress"]["step"] == 1
    assert before <= status["lastProgressTime"] <= time.time()
    second.store.close()


def test_what_training_went_on_from(tmp_path: Path, console: Console) -> None:
    """The status contains it from the first report on, also after a restart of the launcher; it does not count as a
    step."""
    first = begin(tmp_path, console)
    send(first, 1, step=140, time=1000.0, startedFrom="/c/a-uid/attempt-0001/ckpt-0000000140.npz")
    told = "step 140 of /c/a-uid/attempt-0001/ckpt-0000000140.npz"
    assert first.status()["progress"] == {"step": 140, "startedFrom": told}
    assert first.status()["lastProgressTime"] is None
    send(first, 2, step=150, time=1001.0, startedFrom="/c/other")
    send(first, 3, step=141, time=1002.0)
    assert first.status()["progress"]["startedFrom"] == told
    assert first.status()["ranks"][0]["step"] == 141
    first.store.close()
    second = begin(tmp_path, console)
    assert second.progress() == first.progress()
    second.store.close()


def test_training_that_begins_without_a_checkpoint(tmp_path: Path, console: Console) -> None:
    """A restart that begins at step 0 is logged, too."""
    snapshot = begin(tmp_path, console)
    send(snapshot, 1, step=0, time=1000.0, startedFrom="")
    assert snapshot.status()["progress"] == {"step": 0, "startedFrom": "nothing: there was no checkpoint"}
    snapshot.store.close()


@pytest.mark.parametrize(("person", "shown"), [(True, True), (False, False)])
def test_colours_are_for_a_person(person: bool, shown: bool) -> None:
    """A pod's terminal (`tty: true`) is read by `kubectl logs`, and gets lines alone."""
    reader, terminal = os.openpty()
    console = Console(terminal, person=person)
    console.show(b"[0] Step 1/2\n")
    console.close(10)
    os.close(terminal)
    written = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while data := os.read(reader, 1000):
            written += data
    os.close(reader)
    assert (b"\x1b" in written, b"Step 1/2" in written) == (shown, True)


@pytest.mark.parametrize(
    ("every_s", "steps"),
    [
        (0.0, [1, 2, 4, 8, 16, 32, 64, 124, 184, 244, 304, 364, 424, 484, 544, 600]),
        (200.0, [1, 201, 401, 600]),
    ],
    ids=["growing", "as-asked"],
)
def test_lines_of_progress_in_a_pipe_become_rare(tmp_path: Path, every_s: float, steps: list[int]) -> None:
    """A report each second for ten minutes: one line a minute in the end, or as often as asked; the last step has
    its line."""
    shown = tmp_path / "out"
    with shown.open("wb") as out:
        console = Console(out.fileno(), person=True, progress_every_s=every_s)
        snapshot = begin(tmp_path, console)
        for step in range(1, 601):
            send(snapshot, step, step=step, time=1e9 + step, totalSteps=600)
        console.close(10)
    assert [int(line.split("/")[0].removeprefix("Step ")) for line in shown.read_text().splitlines()] == steps
