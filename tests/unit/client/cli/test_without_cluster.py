"""`dtj list`, `why` and `logs` for runs of `dtj local`, without a cluster."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from support.jobs import job

from ringtrain_client.cli.main import main
from ringtrain_client.local.past_runs import write_job


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory in which a job ran twice, without any variable that names a cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    for hour, state in ((1, "Succeeded"), (2, "Failed")):
        run_dir = tmp_path / f"runs/digits-20260101-0{hour}0000"
        logs = run_dir / "logs/default/digits/1"
        logs.mkdir(parents=True)
        (logs / "job.log").write_bytes(b"[0] a%d\n[1] b\n" % hour)
        (logs / "rank-0001.log").write_bytes(b"b\n")
        made = job()
        made["metadata"] |= {"namespace": "default", "creationTimestamp": f"2026-01-01T0{hour}:00:00Z"}
        failure = {"attempt": 1, "rank": 1, "reason": "RankFailed", "message": "rank 1 exited with 9"}
        failed = {"type": "Failed", "status": "True", "reason": "RankFailed", "lastTransitionTime": "now"}
        failed["message"] = "attempt 1: rank 1 exited with 9; a restart would not help"
        made["status"] = {"state": state, "attempt": 1} | (
            {"failure": failure, "conditions": [failed]} if state == "Failed" else {}
        )
        write_job(run_dir, made)
    return tmp_path


def dtj(*words: str) -> Result:
    """Return the result of `dtj WORDS`."""
    return CliRunner().invoke(main, list(words))


@pytest.mark.parametrize("words", [(), ("--local",)], ids=["by-itself", "asked-for"])
def test_runs_are_listed(folder: Path, words: tuple[str, ...]) -> None:
    """The newest run is first, and each has its final state."""
    result = dtj("list", *words)
    assert result.exit_code == 0, result.output
    assert [line.split()[:2] for line in result.stdout.splitlines()[1:]] == [
        ["digits", "Failed"],
        ["digits", "Succeeded"],
    ]


def test_output_is_a_format_everywhere(folder: Path) -> None:
    """`-o` works as in kubectl; `wide` has image and reason."""
    assert dtj("list", "-o", "name").stdout == "digits\ndigits\n"
    assert json.loads(dtj("list", "-o", "json").stdout) == yaml.safe_load(dtj("list", "-o", "yaml").stdout)
    header, newest, _ = dtj("list", "-o", "wide").stdout.splitlines()
    assert header.split()[-3:] == ["BACKEND", "IMAGE", "REASON"]
    assert newest.split()[-3:] == ["ring", "train:1", "-"]
    assert yaml.safe_load(dtj("why", "digits", "-o", "yaml").stdout) == json.loads(
        dtj("why", "digits", "-o", "json").stdout
    )


def test_pages_are_those_of_a_cluster(folder: Path) -> None:
    """`dtj ui` has no --local, and its help refers to `ringtrain ui`."""
    assert "--local" not in (shown := dtj("ui", "--help").output)
    assert "`ringtrain ui` shows the jobs of `dtj local`" in " ".join(shown.split())


def test_the_newest_run_is_explained(folder: Path) -> None:
    """`dtj why` prints the failure of a local run."""
    result = dtj("why", "digits")
    assert result.stdout.startswith("digits is Failed\n")
    assert result.stdout.count("rank 1 exited with 9") == 1
    assert "last failure (attempt 1): RankFailed\n" in result.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "[0] a2\n[1] b\n"),
        (("--rank", "1"), "b\n"),
        (("--tail", "1"), "[1] b\n"),
    ],
    ids=["merged", "one-rank", "tail"],
)
def test_logs_of_the_newest_run(folder: Path, words: tuple[str, ...], expected: str) -> None:
    """`dtj logs` reads the files under runs/."""
    result = dtj("logs", "digits", *words)
    assert (result.exit_code, result.stdout) == (0, expected), result.exception


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("logs", "digits", "--rank", "7"), "has job.log, rank-0001.log"),
        (("logs", "digits", "--attempt", "3"), "no logs of attempt 3; attempts in"),
        (("why", "digit"), "jobs that `dtj local` has run there: digits"),
    ],
    ids=["no-rank", "no-attempt", "no-job"],
)
def test_what_is_not_there(folder: Path, words: tuple[str, ...], expected: str) -> None:
    """The error for a missing rank, attempt or job lists the existing ones."""
    result = dtj(*words)
    assert result.exit_code == 1
    assert expected in result.stderr


def test_following_a_run_that_is_over(folder: Path) -> None:
    """--follow ends with the run. For an auxiliary pod, the error names the command that prints its output."""
    assert dtj("logs", "digits", "--follow").stdout == "[0] a2\n[1] b\n"
    assert "0 to 1" in dtj("logs", "digits", "--follow", "--rank", "2").stderr
    assert "dtj local --logs" in dtj("logs", "digits", "--follow", "--evaluator").stderr


def test_a_cluster_that_is_named_is_asked(folder: Path) -> None:
    """A kubeconfig or a namespace selects a cluster."""
    result = dtj("list", "--kubeconfig", str(folder / "none"))
    assert result.exit_code == 1
    assert "kubeconfig" in result.stderr
