"""RINGTRAIN_TIMELINE: what Perfetto is given to read."""

import json
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.ranks import DEADLINE_S, ask, ranks_ended, run_ranks, started_ranks

import ringtrain as rt
from ringtrain import timeline
from ringtrain._core.negotiation.queues import queue_of
from ringtrain._core.negotiation.request import CollectiveKind, NamedRequest
from ringtrain._core.process_groups.process_sets import global_process_set
from ringtrain.optim import SGD, HostOptimizer
from ringtrain_job.cli.main import main


def train(steps: int) -> None:
    rt.init()
    optimizer = HostOptimizer({"a": np.ones(4000), "b": np.ones(10)}, SGD(lr=0.1), update_during_backward=True)
    for _ in range(steps):
        for name in ("b", "a"):
            optimizer.submit(name, np.ones_like(optimizer.weights[name]))
        optimizer.step()
    rt.barrier()
    rt.shutdown()


def submit_what_others_never_do() -> None:
    """Rank 0 waits for rank 1, which does nothing, in a collective."""
    rt.init()
    if rt.rank() == 0:
        queue_of(global_process_set).submit(NamedRequest(CollectiveKind.BARRIER, "alone"))
        with timeline.span("before the kill"):
            pass
    ask()


def test_who_is_killed_has_written_what_happened(tmp_path: Path) -> None:
    """The file can be read while the run goes on, and after it was killed; what was submitted and never ran is in
    it."""
    path = tmp_path / "timeline.json"
    with started_ranks(submit_what_others_never_do, 2, env={"RINGTRAIN_TIMELINE": str(path)}) as ranks:
        deadline = time.monotonic() + DEADLINE_S
        while not (path.exists() and "before the kill" in path.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for rank in range(2):
            ranks.signal(rank, signal.SIGKILL)
    submitted = [event for event in events_in(path) if event["name"] == "SUBMIT"]
    assert [(event["pid"], event["args"]["tensor"]) for event in submitted] == [(0, "alone")]


def events_in(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text()))


@pytest.mark.parametrize("transport", ["grpc", "shm"])
def test_all_ranks_write_one_file(tmp_path: Path, transport: str) -> None:
    """Each as a process of its own, with backward, submit, collective and update of every step."""
    path = tmp_path / "timeline.json"
    run_ranks(train, 2, 3, env={"RINGTRAIN_TIMELINE": str(path), "RINGTRAIN_TRANSPORT": transport})
    events = events_in(path)
    for rank in range(2):
        mine = [event for event in events if event["pid"] == rank]
        assert [e["args"]["name"] for e in mine if e["name"] == "process_name"] == [f"rank {rank}"]
        counted = Counter(event["cat"] for event in mine if event["ph"] == "X")
        assert counted["backward"] == 3
        assert counted["submit"] == 6
        assert counted["bucket"] >= 3
        # Shared memory reduces, updates and shares new weights in one collective.
        assert counted["collective"] >= 6 if transport == "grpc" else counted["shared memory"] >= 3
        assert transport == "shm" or counted["update"] >= 3
        assert transport == "shm" or counted["ring step"] >= 6
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")


def test_spans_of_ranks_overlap_in_time(tmp_path: Path) -> None:
    """All ranks are on one clock: a barrier ends on each after it began on every one."""
    path = tmp_path / "timeline.json"
    run_ranks(train, 2, 1, env={"RINGTRAIN_TIMELINE": str(path), "RINGTRAIN_TRANSPORT": "grpc"})
    barriers = [e for e in events_in(path) if e.get("cat") == "collective" and e["name"] == "barrier"]
    last = [max((e for e in barriers if e["pid"] == rank), key=lambda e: e["ts"]) for rank in range(2)]
    assert max(e["ts"] for e in last) <= min(e["ts"] + e["dur"] for e in last)


def test_without_a_timeline_a_span_records_nothing(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    timeline.start(path, 5, "run")
    timeline.stop()
    with timeline.span("nothing", "test"):
        pass
    timeline.record_since(0, "nothing", "test")
    assert {event["ph"] for event in events_in(path)} == {"M"}


def test_a_run_begins_a_file_of_its_own(tmp_path: Path) -> None:
    """Ranks of one run share a file; the next run takes the name, and what was there gets a number."""
    path = tmp_path / "timeline.json"
    for run, rank in (("first", 0), ("first", 1), ("second", 0), ("second", 1), ("third", 0)):
        timeline.start(path, rank, run)
        with timeline.span(run):
            pass
    timeline.stop()
    names = {file.name: [e["name"] for e in events_in(file) if e["ph"] == "X"] for file in tmp_path.iterdir()}
    assert names == {
        "timeline.1.json": ["first"] * 2, "timeline.2.json": ["second"] * 2, "timeline.json": ["third"],
    }  # fmt: skip


def test_a_file_of_the_user_is_left_alone(tmp_path: Path) -> None:
    """Neither written to nor moved away."""
    path = tmp_path / "train.py"
    path.write_text("import numpy\n")
    with pytest.raises(OSError, match="not a timeline"):
        timeline.start(path, 0, "run")
    assert path.read_text() == "import numpy\n"


def test_where_the_time_of_a_step_goes(tmp_path: Path) -> None:
    """`ringtrain timeline` has a line for each rank, over whichever transport."""
    for transport in ("grpc", "shm"):
        path = tmp_path / f"{transport}.json"
        run_ranks(train, 2, 3, env={"RINGTRAIN_TIMELINE": str(path), "RINGTRAIN_TRANSPORT": transport})
        lines = CliRunner().invoke(main, ["timeline", str(path)]).output.splitlines()
        assert [line.split(":")[0] for line in lines] == ["rank 0", "rank 1"]
        for line in lines:
            assert re.search(r": 2 steps of \S+ ms: input and forward \d+ %, backward \d+ %, update \d+ %", line)


def join() -> None:
    rt.init()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    outcomes = ranks_ended(join, 1, env={"RINGTRAIN_TIMELINE": str(tmp_path / "no" / "where.json")})
    assert "RINGTRAIN_TIMELINE is" in str(outcomes[0].error)
    assert "No such file or directory" in str(outcomes[0].error)
