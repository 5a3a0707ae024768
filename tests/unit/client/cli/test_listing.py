"""Table of jobs on a terminal of 80 columns and in a pipe."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console
from support.jobs import job

from ringtrain_client.cli.listing import JobColumns, _newest_jobs_table, print_jobs
from ringtrain_client.cli.main import main
from ringtrain_client.local.past_runs import write_job

TERMINAL = {"FORCE_COLOR": "1", "COLUMNS": "80", "TERM": "xterm-256color", "NO_COLOR": None}
LONG = "a-job-with-a-name-of-as-many-letters-as-kubernetes-"[:50] + "x"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def in_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change into a folder with runs of a job with the longest name, and of a job that has failed."""
    for name, state in ((LONG, "Running"), ("digits", "Failed")):
        made: dict[str, Any] = job(name)
        made["metadata"] |= {"namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
        made["status"] = {"state": state, "workers": "128/128", "restarts": 3, "reason": "AgentLost"}
        made["status"]["progressSummary"] = "120000/300000 (40%), waits for data 35% of the time"
        directory = tmp_path / "runs" / f"{name}-20260101-000000"
        directory.mkdir(parents=True)
        write_job(directory, made)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("options", "width"), [([], 80), ([], 60), (["-A"], 80), (["-o", "wide"], 1000)])
def test_rows_fit_a_terminal_and_lose_nothing(in_runs: None, options: list[str], width: int) -> None:
    """Long names and progress are wrapped without losing a letter, and the state is coloured."""
    env = {**TERMINAL, "COLUMNS": str(min(width, 80))}
    result = CliRunner().invoke(main, ["list", "--local", *options], env=env)
    assert result.exit_code == 0, result.output
    lines = [_STYLE.sub("", line) for line in result.output.splitlines()]
    assert max(map(len, lines)) <= width
    assert any("Failed" in line and "128/128" in line for line in lines)
    assert "\x1b[31mFailed" in result.output
    if not options:
        name = "".join(line.split()[0] for line in lines[1:] if line[:1].strip() and not line.startswith("digits"))
        assert name == LONG


def test_a_loss_that_is_not_finite_is_beside_the_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """As long as failOnNaN is not set, nothing else in a list tells of it."""
    made: dict[str, Any] = job()
    made["metadata"] |= {"namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
    progress = {"step": 60, "notFinite": "loss NaN since step 10 (rank 1)"}
    made["status"] = {"state": "Running", "progressSummary": "60/100 (60%)", "progress": progress}
    print_jobs([made])
    assert "60/100 (60%), loss NaN since step 10 (rank 1)" in capsys.readouterr().out


def test_no_color_and_pipes_have_no_colours(in_runs: None) -> None:
    """NO_COLOR disables colours, and a pipe gets one line for each job."""
    plain = CliRunner().invoke(main, ["list", "--local"], env={**TERMINAL, "NO_COLOR": "1"}).output
    assert "\x1b[31m" not in plain
    piped = CliRunner().invoke(main, ["list", "--local"], env={**TERMINAL, "FORCE_COLOR": None}).output
    assert "\x1b" not in piped
    assert [line.split()[0] for line in piped.splitlines()] == ["NAME", *sorted([LONG, "digits"], key=piped.index)]


def test_watch_shows_a_table_only(in_runs: None) -> None:
    """--watch with JSON output is refused."""
    result = CliRunner().invoke(main, ["list", "--local", "--watch", "-o", "json"])
    assert result.exit_code == 2
    assert "--watch shows a table" in result.output


def test_a_job_without_a_status_is_said_to_be_unprocessed(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else tells that no operator runs."""
    made: dict[str, Any] = job("new")
    made["metadata"] |= {"namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
    print_jobs([made])
    assert "Pending  0/2      0         no operator has processed it" in capsys.readouterr().out


def test_damaged_runs_are_named(in_runs: None, tmp_path: Path) -> None:
    """They are missing in the list."""
    file = tmp_path / "runs" / "digits-20260101-000000" / "job.json"
    file.write_text(file.read_text()[:50])
    for command in (["list"], ["logs", "digits-20260101-000000"]):
        assert "is damaged in digits-20260101-000000" in CliRunner().invoke(main, [*command, "--local"]).stderr


def test_names_of_runs_are_distinct(in_runs: None, tmp_path: Path) -> None:
    """A job that ran twice is listed by the names of its runs, with `-o name`, too."""
    copied = tmp_path / "runs" / "digits-again"
    shutil.copytree(tmp_path / "runs" / "digits-20260101-000000", copied)
    names = CliRunner().invoke(main, ["list", "--local", "-o", "name"]).output.split()
    assert sorted(names) == sorted([LONG, "digits-again", "digits-20260101-000000"])


@pytest.mark.parametrize(("height", "width"), [(24, 80), (24, 60), (5, 80), (1, 80)])
def test_a_watched_list_that_is_longer_than_the_terminal_shows_the_newest(height: int, width: int) -> None:
    """The job that was just created is among them, and the last line has the number of the others. Rows that are
    wrapped count as several lines."""
    jobs: list[dict[str, Any]] = [job(f"job-{number:02d}") for number in range(30)]
    for number, made in enumerate(jobs):
        created = f"2026-01-01T00:00:{(number + 15) % 30:02d}Z"  # job-14 is the newest
        made["metadata"] |= {"namespace": "default", "creationTimestamp": created, "uid": str(number)}
    console = Console(width=width, height=height)
    with console.capture() as printed:
        console.print(_newest_jobs_table(jobs, JobColumns(), console))
    lines = printed.get().splitlines()
    names = [line.split()[0] for line in lines if line.startswith("job-")]
    assert len(lines) <= max(height - 1, 3)
    assert "job-14" in names
    assert lines[-1].startswith(f"older jobs that are not shown: {30 - len(names)};")
