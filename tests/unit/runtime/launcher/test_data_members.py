"""The launcher's list of data workers, its copies for agents, and the time that ranks wait for input."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.small_job import Clock, environment

from ringtrain.errors import DataError
from ringtrain.shared.data_members import (
    DataAddress,
    DataMember,
    DataMembersFile,
    digest,
    members_text,
    read_members,
)
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.data_members import DataMembers
from ringtrain_job.launcher.throughput import GangThroughput, throughput_step_line
from ringtrain_job.logs.step_times import StepTimes

MEMBER = DataMember("u", 0, "first", "digits-data-0", "10.0.0.9:7370", "ringtrain", 2)


def members(clock: Clock, **changed: str) -> DataMembers:
    return DataMembers(LauncherConfig.from_env({**environment(1, JOB_UID="u", DATA_WORKERS="2"), **changed}), clock)


def workers(text: str) -> list[tuple[int, str]]:
    return [(one["index"], one["instance"]) for one in json.loads(text)["workers"]]


def test_who_announces_itself_is_told_to_the_agents() -> None:
    """Each agent gets the list once."""
    data = members(Clock())
    assert data.announce(MEMBER) == ""
    text = data.text_since("")
    assert workers(text) == [(0, "first")]
    assert data.text_since(digest(text)) == ""
    assert data.status() == {
        "wanted": 2,
        "registered": 1,
        "workers": [
            {"index": 0, "pod": "digits-data-0", "registered": True},
            {"index": 1, "pod": "", "registered": False},
        ],
    }


def test_silence_is_loss() -> None:
    """A quarter of RINGTRAIN_TIMEOUT after the last heartbeat a data worker is in no list any more."""
    clock = Clock()
    data = members(clock)
    data.announce(MEMBER)
    clock.now = 14.9
    assert workers(data.text_since("")) == [(0, "first")]
    clock.now = 15.1
    assert workers(data.text_since("")) == []
    assert data.status()["registered"] == 0


def test_a_new_process_takes_the_place_of_the_one_before() -> None:
    """The index is the same, the instance another."""
    data = members(Clock())
    data.announce(MEMBER)
    data.announce(replace(MEMBER, instance="second"))
    assert workers(data.text_since("")) == [(0, "second")]


def test_a_launcher_that_has_just_started_takes_nobody_out() -> None:
    """A new launcher does not know the data workers: ranks use their old list until one has announced itself, or until
    the time for it is over."""
    clock = Clock()
    data = members(clock)
    assert data.text_since("whatever the launcher before has told") == ""
    clock.now = 15.1
    assert workers(data.text_since("whatever the launcher before has told")) == []


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        (replace(MEMBER, job_uid="other"), r"job uid 'other'; this launcher is of 'u'"),
        (replace(MEMBER, kind="tensorflow"), r"kind 'tensorflow'; .* of kind 'ringtrain'"),
    ],
    ids=["another-job", "another-kind"],
)
def test_a_stranger_is_refused(member: DataMember, problem: str) -> None:
    """The error contains the expected and the actual sender."""
    data = members(Clock())
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(data.announce(member))
    assert data.status()["registered"] == 0


def test_a_job_without_data_workers_has_no_list() -> None:
    """Nor takes one in."""
    clock = Clock()
    data = members(clock, RINGTRAIN_DATA_WORKERS="")
    assert "no data workers" in data.announce(MEMBER)
    clock.now = 1000.0
    assert data.text_since("") == ""


def test_the_file_is_what_ranks_read(tmp_path: Path) -> None:
    """The file lists data workers by index; it does not exist before the agent writes it, and an empty message changes
    nothing."""
    file = DataMembersFile(tmp_path / "workers.json")
    assert read_members(file.path) == ()
    second = replace(MEMBER, index=1, instance="b", address="h:2", dispatchers=("h:3",))
    text = members_text("ringtrain", [second, MEMBER])
    file.take(text)
    assert file.version == digest(text)
    file.take("")
    expected = (DataAddress(0, "first", "10.0.0.9:7370"), DataAddress(1, "b", "h:2"))
    assert read_members(file.path) == expected
    assert json.loads(text)["dispatchers"] == ["h:3"]


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2, "workers": []}', '{"version": 1, "workers": [{}]}'])
def test_a_file_by_hand_that_is_none(tmp_path: Path, text: str) -> None:
    """Names the file and shows what one looks like."""
    path = tmp_path / "workers.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"workers\.json: not a list of data workers .*; expected \{"):
        read_members(path)


def report(time: float, waited: float | None = None) -> dict[str, Any]:
    return {"step": int(time), "time": time, **({} if waited is None else {"inputWait": waited})}


def test_the_wait_is_a_part_of_all_ranks_time() -> None:
    """Rank 0 has waited 1 of 2 s, rank 1 none of 2: a quarter. The first report is no span of time."""
    wait = StepTimes()
    assert wait.input_fraction is None
    for rank, waited in ((0, 1.0), (1, 0.0)):
        wait.add(rank, report(10.0, 5.0))
        wait.add(rank, report(12.0, waited))
    assert wait.input_fraction == 0.25
    wait.keep([1])
    assert wait.input_fraction == 0.0


def test_the_wait_follows_a_change() -> None:
    """Three times as many reports later as count, a twentieth of the former wait is left."""
    wait = StepTimes(recent=20)
    for second in range(100):
        wait.add(0, report(second, 1.0 if second < 40 else 0.0))
    fraction = wait.input_fraction
    assert fraction is not None
    assert 0 < fraction < 0.05


@pytest.mark.parametrize(("waited", "said"), [(0.23, "input-bound 23 %"), (0.04, ""), (None, "")])
def test_progress_says_that_input_is_what_is_slow(waited: float | None, said: str) -> None:
    """The message appears from 5 % on."""
    throughput = GangThroughput(1)
    throughput.add(0, report(1.0, waited))
    throughput.add(0, report(2.0, waited))
    progress = throughput.progress()
    assert progress is not None
    line = throughput_step_line(progress, None)
    assert line == f"Step 2  {said}".strip()
