"""Files of past local runs that somebody has edited: commands ignore them or print one line."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.edits import edited, edits_of
from support.jobs import job

from ringtrain_client.cli.main import main
from ringtrain_client.local.past_runs import JOB_FILE, read_job, write_job
from ringtrain_operator.errors import OperatorError

SEED = random.randrange(10**6)


def stored_job(name: str) -> dict[str, Any]:
    """A job that failed, with each part of the status that commands print."""
    made = job(name)
    time = "2026-01-01T03:00:00Z"
    made["metadata"] |= {"namespace": "default", "creationTimestamp": time, "uid": name, "generation": 1}
    failed = {"type": "Failed", "status": "True", "reason": "RankFailed", "message": "m", "lastTransitionTime": time}
    progress = {"step": 3, "totalSteps": 9, "metrics": {"loss": 0.5}, "stepsPerSecond": 2.0, "lastStepTime": time}
    failure = {"attempt": 1, "rank": 1, "pod": "p", "exitCode": 9, "reason": "RankFailed", "message": "m"}
    made["status"] = {
        "state": "Failed",
        "reason": "RankFailed",
        "attempt": 1,
        "restarts": 0,
        "workers": "0/2",
        "startTime": time,
        "completionTime": time,
        "conditions": [failed],
        "failure": {**failure, "logTail": ["a"]},
        "progress": progress,
        "progressSummary": "3/9",
    }
    return made


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two runs, in a directory without any cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name in ("edited", "whole"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        write_job(tmp_path / "runs" / name, stored_job(name))
    return tmp_path / "runs"


def test_a_job_with_any_wrong_value_does_not_break_a_command(runs: Path) -> None:
    """Other runs stay in the list, and each command prints lines, no traceback."""
    whole = stored_job("edited")
    assert read_job(runs / "edited") == whole
    for place, value in random.Random(SEED).sample(edits_of(whole), 120):
        (runs / "edited" / JOB_FILE).write_text(json.dumps(edited(whole, place, value)))
        for words in (["list", "-o", "wide"], ["why", "edited"], ["watch", "edited"], ["logs", "edited"]):
            result = CliRunner().invoke(main, [*words, "--local"])
            about = f"seed {SEED}: {words}, {place} is {value!r}"
            assert isinstance(result.exception, SystemExit | OperatorError | None), (about, result.exc_info)
            assert "Traceback" not in result.output, about
            assert words[0] != "list" or "whole" in result.output, about


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "5", '"x"', "{}", "{", "[" * 100_000, "\udcff"],
    ids=["empty", "null", "list", "number", "text", "object", "cut", "deep", "not-utf-8"],
)
def test_a_file_that_holds_no_job_is_ignored(runs: Path, text: str) -> None:
    (runs / "edited" / JOB_FILE).write_text(text, encoding="utf-8", errors="surrogateescape")
    assert read_job(runs / "edited") is None


def test_a_folder_in_place_of_the_file_is_ignored(runs: Path) -> None:
    (runs / "edited" / JOB_FILE).unlink()
    (runs / "edited" / JOB_FILE).mkdir()
    assert read_job(runs / "edited") is None
