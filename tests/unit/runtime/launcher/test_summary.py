"""An attempt in short, from its files alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from ringtrain_job.launcher.status import LauncherReports
from ringtrain_job.launcher.summary import summarize_attempt
from ringtrain_job.launcher.throughput import progress_json
from ringtrain_job.logs.layout import AttemptFiles


@pytest.fixture
def files(tmp_path: Path) -> AttemptFiles:
    """Of an attempt whose two ranks are at different steps, and have different losses."""
    found = AttemptFiles(tmp_path / "1")
    found.directory.mkdir()
    rows = [
        {"rank": rank, "step": step, "time": 1000.0 + step, "samples": 4, "totalSteps": 40, "loss": 1.0 + rank}
        for step in range(1, 12)
        for rank in (0, 1)
        if step < 11 or rank
    ]
    found.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"rank": 0, "st')
    return found


def _launcher_progress(files: AttemptFiles) -> dict[str, Any]:
    """Return the progress in the launcher's status for the same reports."""
    kept = LauncherReports(2)
    with kept as reports:
        for line in files.metrics.read_text().splitlines()[:-1]:
            row = json.loads(line)
            reports.add(row["rank"], row)
        progress = reports.progress()
        assert progress is not None
        return progress_json(progress, reports.uncertainty())


@pytest.mark.parametrize("time", ["null", '"now"', "[1]", "NaN", "1e999", "-1", "1" + "0" * 400])
def test_a_time_that_is_no_time_is_skipped(files: AttemptFiles, time: str) -> None:
    """In events and reports that someone changed; the other lines count."""
    wrong = f'{{"time": {time}, "kind": "Launcher", "text": "", "rank": 0, "step": 20}}\n'
    files.metrics.write_text(wrong + files.metrics.read_text().rpartition("\n")[0] + "\n" + wrong)
    files.events.write_text(wrong + '{"time": 1}\n{"time": 1, "kind": 2, "text": ""}\n')
    assert summarize_attempt(files).shown["took"] == "10 s"
    files.metrics.write_text(wrong)
    assert summarize_attempt(files).took_s is None


def test_a_killed_launcher_leaves_what_its_status_said(files: AttemptFiles) -> None:
    """The step that all ranks have reached, the mean loss, and the speed of all ranks together."""
    found = summarize_attempt(files)
    assert dict(found.progress) == _launcher_progress(files)
    assert found.shown == {
        "state": "Killed", "ranks": "", "steps": "10/40", "loss": "1.5", "speed": "8.0 samples/s", "took": "10 s",
    }  # fmt: skip


def test_an_outcome_counts(files: AttemptFiles) -> None:
    """State, ranks, progress and failure are the launcher's own words; times are those of its events."""
    message = {
        "outcome": "Failed", "worldSize": 2, "failure": {"rank": 1, "message": "m"},
        "progress": {"step": 9, "notFinite": {"loss": {"value": "NaN", "since": 3, "rank": 0}}},
    }  # fmt: skip
    files.outcome.write_text(json.dumps({"message": message}))
    events = [{"time": 990.0, "kind": "Launcher", "text": ""}, {"time": 1081.0, "kind": "Failed", "text": "m"}]
    files.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    found = summarize_attempt(files)
    assert (found.took_s, found.failure, found.loss) == (91.0, message["failure"], "NaN")
    assert (found.shown["state"], found.shown["steps"], found.shown["took"]) == ("Failed", "9", "2 min")


def test_a_long_run_is_read_from_its_newest_reports(files: AttemptFiles) -> None:
    """A list of runs must not read a gigabyte: the newest megabyte says where each rank is."""
    rows = [{"rank": n % 2, "step": n // 2, "time": 1000.0 + n, "note": "x" * 1000} for n in range(4000)]
    files.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = summarize_attempt(files)
    assert (found.progress["step"], found.began, found.ended) == (1999, 1000.0, 4999.0)
