"""Runs by name: which one a word means, and what a new run is called."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from ringtrain_job.cli.runs import RUNS, find_attempt, find_run, find_runs, make_run_folder, no_runs_text
from ringtrain_job.logs.reading import LogMissing


def _attempt(path: Path, time: float) -> Path:
    """An attempt in `path`, of a launcher that wrote last at `time`."""
    path.mkdir(parents=True)
    (path / "job.log").touch()
    os.utime(path / "job.log", (time, time))
    (path / "events.jsonl").write_text(json.dumps({"time": time, "kind": "Launcher", "text": ""}) + "\n")
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Of `ringtrain run`, of `dtj local` (twice the job `hello`), and of a cluster's volume."""
    for time, path in enumerate(
        ("local/lr-0.1/1", "hello-1/logs/default/hello/1", "hello-1/logs/default/hello/2",
         "hello-2/logs/default/hello/1", "team/digits/1", "local/train-3f2a/1")
    ):  # fmt: skip
        _attempt(tmp_path / path, 1000.0 + time)
    return tmp_path


def test_names_are_short(runs: Path) -> None:
    """The newest run comes first, and each has its newest attempt."""
    found = [(run.name, run.files.number) for run in find_runs(runs)]
    assert found == [("train-3f2a", 1), ("team/digits", 1), ("hello-2", 1), ("hello-1", 2), ("lr-0.1", 1)]


@pytest.mark.parametrize(
    ("name", "attempt", "place"),
    [
        ("lr-0.1", None, "local/lr-0.1/1"),
        ("hello-1", None, "hello-1/logs/default/hello/2"),
        ("hello-1", 1, "hello-1/logs/default/hello/1"),
        ("hello", None, "hello-2/logs/default/hello/1"),
        ("digits", None, "team/digits/1"),
        ("{runs}/local/lr-0.1", None, "local/lr-0.1/1"),
        ("{runs}/hello-1", None, "hello-1/logs/default/hello/2"),
        ("tr…2a", None, "local/train-3f2a/1"),
        (None, None, "local/train-3f2a/1"),
    ],
    ids=["name", "newest-attempt", "attempt", "job", "job-of-a-cluster", "folder", "folder-above", "short", "newest"],
)
def test_a_run_is_named(name: str | None, attempt: int | None, place: str, runs: Path) -> None:
    """By its own name, its job's, a folder, or as the newest."""
    wanted = None if name is None else name.format(runs=runs)
    assert find_attempt(wanted, runs, attempt).directory == runs / place


def test_a_name_is_found_again(runs: Path) -> None:
    """Each name that the list prints leads to its run, also where a folder has the name of another run's job."""
    for run in find_runs(runs):
        again = find_run(run.name, runs)
        assert (again.name, again.files.directory) == (run.name, run.files.directory)


def test_a_name_with_control_characters(runs: Path) -> None:
    """No name ends a line or controls the terminal; the printed name leads to the run."""
    attempt = _attempt(runs / "local/a\n\x1b[31mb/1", 2000.0)
    name = find_runs(runs)[0].name
    assert name == "a\ufffd\ufffd[31mb"
    assert find_attempt(name, runs).directory == attempt


@pytest.mark.parametrize("name", [".outcome.json", "events.jsonl", "metrics.jsonl", "rank-0000.log"])
def test_a_run_without_its_log(runs: Path, name: str) -> None:
    """People delete job.log, often the largest file; any other file of a run shows that it is one."""
    attempt = runs / "local/lr-0.1/1"
    for path in attempt.iterdir():
        path.unlink()
    (attempt / name).touch()
    assert find_runs(runs)[-1].name == "lr-0.1"
    assert find_attempt("lr-0.1", runs).directory == attempt


def test_a_copied_run_does_not_become_the_newest(runs: Path) -> None:
    """`cp -r` gives its files a new time, but the run began when it did: every command has the order of the list."""
    for copied in ("hello-b", "a-copy"):
        shutil.copytree(runs / "local/lr-0.1", runs / "local" / copied)
    assert [run.name for run in find_runs(runs)][-3:] == ["a-copy", "hello-b", "lr-0.1"]
    assert find_attempt(None, runs).directory == runs / "local/train-3f2a/1"
    assert find_attempt(str(runs), runs).directory == runs / "local/train-3f2a/1"
    with pytest.raises(LogMissing, match=r"the newest runs are train-3f2a, team/digits, hello-2, hello-1, a-copy$"):
        find_attempt("nope", runs)


def test_an_unknown_name(runs: Path) -> None:
    """The line names the newest runs."""
    with pytest.raises(LogMissing, match=r"^nope is neither a run in .* the newest runs are train-3f2a, team/digits, "):
        find_attempt("nope", runs)
    with pytest.raises(LogMissing, match=r"hello has no attempt 7; its attempts are: 1, 2$"):
        find_attempt("hello-1", runs, 7)


def test_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says how to make one, in the folder that was named."""
    monkeypatch.chdir(tmp_path)
    assert find_runs(RUNS) == []
    for name in (None, "a"):
        with pytest.raises(
            LogMissing, match=r"runs does not exist, .* `ringtrain run -np 2 python train.py` creates one"
        ):
            find_attempt(name, RUNS)
    (tmp_path / "mine").mkdir()
    assert "`ringtrain run --runs mine -np 2" in no_runs_text(Path("mine"))


def test_new_runs_have_names_of_their_own(tmp_path: Path) -> None:
    """A short one by default; one that is taken gets a number, and nothing of the run before it is moved."""
    assert [make_run_folder(tmp_path, "lr-0.1", "train").name for _ in range(3)] == ["lr-0.1", "lr-0.1-2", "lr-0.1-3"]
    made = {make_run_folder(tmp_path, None, "train") for _ in range(20)}
    assert len(made) == 20
    assert all(re.fullmatch(r"train-[0-9a-f]{4}(-\d+)?", folder.name) for folder in made)
