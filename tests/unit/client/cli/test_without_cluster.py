"""`dtj list`, `why` and `logs` for runs of `dtj local`, without a cluster."""

import json
import shutil
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
        made["metadata"] |= {
            "namespace": "default",
            "creationTimestamp": f"2026-01-01T0{hour}:00:00Z",
            "uid": str(hour),
        }
        failure = {"attempt": 1, "rank": 1, "reason": "RankFailed", "message": "rank 1 exited with 9"}
        failed = {
            "type": "Failed",
            "status": "True",
            "reason": "RankFailed",
            "lastTransitionTime": "2026-01-01T03:00:00Z",
        }
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
    """The newest run is first, and each has its final state, and its own name where the job's name would not tell."""
    result = dtj("list", *words)
    assert result.exit_code == 0, result.output
    assert [line.split()[:2] for line in result.stdout.splitlines()[1:]] == [
        ["digits-20260101-020000", "Failed"],
        ["digits-20260101-010000", "Succeeded"],
    ]
    shutil.rmtree(folder / "runs/digits-20260101-020000")
    assert dtj("list", *words).stdout.splitlines()[1].split()[:2] == ["digits", "Succeeded"]


@pytest.mark.parametrize(("reason", "state"), [("Stopped", "Stopped"), ("DriverLost", "Killed")])
def test_a_run_that_did_not_end_by_itself_has_the_state_of_its_summary(folder: Path, reason: str, state: str) -> None:
    """The API has only the state Failed; all commands show what `ringtrain list` shows."""
    file = folder / "runs/digits-20260101-020000/job.json"
    ended = json.loads(file.read_text())
    ended["status"] |= {"state": "Failed", "reason": reason}
    file.write_text(json.dumps(ended))
    assert dtj("list").stdout.splitlines()[1].split()[1] == state
    assert dtj("why", "digits").stdout.startswith(f"digits is {state}\n")
    assert dtj("watch", "digits").stdout.startswith(f"state  {state}\n")
    listed = json.loads(dtj("list", "-o", "json").stdout)
    assert [(job["metadata"]["name"], job["status"]["state"]) for job in listed] == [
        ("digits-20260101-020000", state),
        ("digits-20260101-010000", "Succeeded"),
    ]


def test_watch_does_not_show_the_stored_state_of_a_job_without_its_driver(folder: Path) -> None:
    """A driver that was killed left Running and a step that is older than the logs in its status."""
    file = folder / "runs/digits-20260101-020000/job.json"
    left = json.loads(file.read_text())
    left["status"] = {
        "state": "Running",
        "attempt": 1,
        "progress": {"step": 3, "totalSteps": 9},
        "progressSummary": "3/9",
    }
    file.write_text(json.dumps(left))
    watched = dtj("watch", "digits")
    assert (watched.exit_code, watched.stderr) == (1, "")
    assert watched.stdout == "state  Killed\n       its driver was killed; ringtrain list shows its last step\n"
    assert dtj("list").stdout.splitlines()[1].split()[1:5] == ["Killed", "-", "0", "-"]
    assert dtj("why", "digits").stdout.startswith("digits is Killed\n")


def test_a_copy_of_a_runs_folder_is_a_run_of_its_own(folder: Path) -> None:
    """It has the same uid in its file, and is listed by the name of its folder."""
    shutil.copytree(folder / "runs/digits-20260101-020000", folder / "runs/backup")
    rows = [line.split()[0] for line in dtj("list").stdout.splitlines()[1:]]
    assert sorted(rows) == ["backup", "digits-20260101-010000", "digits-20260101-020000"]


def test_runs_in_another_folder(folder: Path) -> None:
    """Each command that reads jobs of `dtj local` prints the same with --runs."""
    commands = [("list",), ("list", "-o", "name"), ("why", "digits"), ("watch", "digits"), ("logs", "digits")]
    before = [dtj(*words).output for words in commands]
    (folder / "runs").rename(folder / "other")
    after = [dtj(*words, "--runs", "other").output for words in commands]
    assert [text.replace("other/", "runs/") for text in after] == before


def test_an_empty_list_names_the_command_that_runs_a_job(folder: Path) -> None:
    """Exit code 0, nothing on stdout."""
    shutil.rmtree(folder / "runs")
    result = dtj("list", "--local")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No jobs in runs/; `dtj local FILE` runs a job on this machine.\n"


def test_output_is_a_format_everywhere(folder: Path) -> None:
    """`-o` works as in kubectl; `wide` has image and reason. `name` has the runs of a job that ran twice."""
    names = dtj("list", "-o", "name").stdout.splitlines()
    assert sorted(names) == sorted(path.name for path in Path("runs").iterdir())
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


@pytest.mark.parametrize("command", ["ui", "suspend"])
def test_who_has_no_cluster_is_shown_the_page_of_local_runs(folder: Path, command: str) -> None:
    """Beside the way to a cluster."""
    result = dtj(command, "digits")
    assert result.exit_code == 1
    assert result.stderr.endswith("; ringtrain ui shows the runs of dtj local\n")
    assert result.stderr.count("\n") == 1


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


def test_an_older_run_has_the_name_of_its_folder(folder: Path) -> None:
    """As `ringtrain list` prints it."""
    older = "digits-20260101-010000"
    assert dtj("logs", older).stdout == "[0] a1\n[1] b\n"
    assert dtj("why", older).stdout == "digits is Succeeded\n"
    pods = folder / "runs" / older / "pods"
    pods.mkdir()
    (pods / "digits-evaluator.log").write_text("score 3\n")
    assert dtj("logs", older, "--evaluator").stdout == "score 3\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("logs", "digits", "--rank", "7"), "has job.log, rank-0001.log"),
        (("logs", "digits", "--attempt", "3"), "attempt 3 has no logs; "),
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
