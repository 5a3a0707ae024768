"""Jobs on this machine, from manifest to end: real launcher, agents and ranks, driven by the operator's plan."""

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import completed
from support.jobs import job
from support.local import Local, Start, until
from support.terminal import Terminal

from ringtrain_client.local.past_runs import newest_run

HOLD = "20"
TRAIN = ("python", str(Path(__file__).parent / "training.py"), "40", HOLD)
CHECKPOINT = {"persistentVolumeClaim": {"claimName": "places"}}


def holds(local: Local) -> bool:
    """Whether the first attempt is where it stays until something happens to it."""
    places = list(local.directory.glob("runs/claims/places/t-*/place"))
    return [place.read_text() for place in places] == [HOLD]


def test_digits(start: Start) -> None:
    """The digits job ends with its test accuracy, the paths of its logs and of its page, and exit code 0."""
    run = start("python", "examples/digits/train.py", "--epochs", "12", slotsPerWorker=2)
    output = run.finish(0)
    accuracy = re.search(r"test accuracy +(\d+\.\d+) %", output)
    assert accuracy is not None, output
    assert float(accuracy.group(1)) > 90
    assert re.search(r"^logs +\S+/logs/default/t/1$", output, re.MULTILINE)
    report = re.search(r"^report +(\S+/logs/default/t/1/report\.html)$", output, re.MULTILINE)
    assert report is not None, output
    (page,) = run.directory.rglob("report.html")
    assert '"name":"loss"' in page.read_text()


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=lambda s: s.name)
def test_a_lost_rank_restarts_the_gang_from_its_checkpoint(start: Start, fault: signal.Signals) -> None:
    """A rank that dies or hangs ends the attempt; the next one goes on where the checkpoint is, and succeeds."""
    local = start(*TRAIN, workers=3, checkpoint=CHECKPOINT, networking={"timeoutSeconds": 3})
    until(lambda: holds(local))
    victim = local.rank(1)
    assert victim is not None
    victim.send_signal(fault)
    output = local.finish(0)
    assert "2 attempts" in output
    begun = re.search(r"begins at step (\d+)", local.log(2))
    assert begun is not None
    assert begun.group(1) == HOLD


def test_a_failing_job_names_its_failure(start: Start) -> None:
    """A job that exhausts backoffLimit fails, and the output has rank, exit code and log of the first failure."""
    script = "import os, sys; print('no such dataset', flush=True); sys.exit(7 * (os.environ['RANK'] == '1'))"
    local = start("python", "-c", script, runPolicy={"backoffLimit": 1})
    output = local.finish(1)
    assert "BackoffLimitExceeded" in output or "backoffLimit" in output
    assert "First failure of attempt 2: rank 1 (t-worker-1), RankFailed, exit code 7" in output
    assert "Restarting: attempt 1: rank 1 exited with 7 (t-worker-1): no such dataset\n" in output
    assert output.count("exited with 7") == 1
    kept = newest_run(local.directory / "runs", "t")
    assert (kept.job["status"]["state"], kept.log(rank=1, attempt=2).read_text()) == (
        "Failed",
        "no such dataset\n",
    )


def test_a_command_that_does_not_exist(start: Start) -> None:
    """The failure says which command could not be found; a restart would find no other."""
    output = start("no-such-command").finish(1)
    assert "cannot execute no-such-command" in output
    assert "CannotStart, exit code 127" in output
    assert "Restarting" not in output


def test_what_the_jobs_file_lacks(start: Start) -> None:
    """It is named before a rank runs, and nothing is tried again; `dtj list`, `why` and `watch` name it later, too."""
    template = {"spec": {"containers": [{"name": "train", "image": "train:1", "command": ["true"]}]}}
    template["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "absent"}}]
    local = start("true", worker={"replicas": 2, "template": template})
    refusal = "ConfigMap 'absent' is not in the job's file; add it to the file"
    assert refusal in (output := local.finish(1))
    assert "Pending" not in output
    assert re.search(r"(?m)^t +Failed ", local.command("dtj", "list", "--local"))
    assert f"CannotRun: {refusal}" in local.command("dtj", "why", "t", "--local")
    shown = local.command("dtj", "watch", "t", "--local", code=1)
    assert re.search(rf"^state +Failed\n +{refusal}\n", shown), shown


def test_suspend_and_resume(start: Start) -> None:
    """Saving suspend: true ends the ranks; saving false starts the next attempt from the checkpoint."""
    local = start(*TRAIN, checkpoint=CHECKPOINT)
    until(lambda: holds(local))
    local.save(runPolicy={"suspend": True})
    until(lambda: local.rank(0) is None)
    local.save(runPolicy={"suspend": False})
    assert "2 attempts" in local.finish(0)
    assert f"begins at step {HOLD}" in local.log(2)


def test_pods_die_with_dtj(start: Start) -> None:
    """A dtj that is killed outright takes its pods, their ranks, and what these have started, with it."""
    local = start("sh", "-c", "setsid sleep 3600 & exec sleep 3600")
    until(lambda: local.rank(0))
    until(lambda: sum(process.name() == "sleep" for process in local.processes()) == 4)
    local.process.kill()
    local.process.wait()
    until(lambda: not local.processes())


REPORTING = """if True:
    import itertools, time, ringtrain as rt
    rt.init()
    for step in itertools.count(1):
        rt.allreduce([1.0])
        rt.report(step, total_steps=100000, loss=1.0 / step)
        time.sleep(0.01)"""


def test_all_commands_agree_on_a_job_that_the_user_stopped(start: Start) -> None:
    """The terminal, the run's list and the list of jobs show the same state and step; no rank is to blame."""
    local = start("python", "-c", REPORTING)
    until(lambda: any(file.stat().st_size for file in local.directory.glob("runs/*/logs/default/t/1/metrics.jsonl")))
    local.process.send_signal(signal.SIGINT)
    said = local.finish(130)
    step = re.search(r"(?m)^steps +(\d+)/100000", said)
    assert step is not None, said
    (run,) = json.loads(local.command("ringtrain", "list", "-o", "json"))
    assert (run["state"], run["failure"], run["step"]) == ("Stopped", None, int(step[1]))
    (listed,) = json.loads(local.command("dtj", "list", "--local", "-o", "json"))
    status = listed["status"]
    assert (status["state"], status["reason"], status["progress"]["step"]) == ("Stopped", "Stopped", int(step[1]))


def test_a_job_without_its_driver_has_failed(start: Start) -> None:
    """A driver that is killed cannot record the end: lists and `dtj why` find out themselves."""
    local = start("sleep", "3600")
    until(lambda: local.rank(0))
    local.process.kill()
    local.process.wait()
    (listed,) = json.loads(local.command("dtj", "list", "--local", "-o", "json"))
    assert (listed["status"]["state"], listed["status"]["reason"]) == ("Killed", "DriverLost")
    assert "DriverLost: its driver was killed" in local.command("dtj", "why", "t", "--local")
    assert "rank 1 has written nothing" in local.command("dtj", "logs", "t", "--local", "--rank", "1", code=1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM], ids=lambda s: s.name)
def test_ctrl_c_leaves_nothing_behind(start: Start, number: signal.Signals) -> None:
    """A signal ends every process of the job; the summary says where training was, and where its logs are, and the exit
    code names the signal, as those of `ringtrain run`."""
    local = start("sleep", "3600")
    until(lambda: local.rank(0))
    local.process.send_signal(number)
    said = local.finish(128 + number)
    assert re.search(r"stopping \d ranks? \(10 s; press Ctrl-C again to kill them\)", said)
    assert re.search(r"(?m)^state +Stopped$", said)
    assert re.search(r"(?m)^job took +\d+ s, 1 attempt$", said)
    assert re.search(r"(?m)^logs +\S+/1$", said)
    assert local.processes() == []


@pytest.mark.parametrize("words", [(), ("--plain",)], ids=["panel", "lines"])
def test_a_closed_terminal_stops_the_job(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Although nothing can be printed any more: lists show that the user stopped it."""
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(sleeping(1)))
    dtj = str(Path(sys.executable).parent / "dtj")
    terminal = Terminal([dtj, "local", "job.yaml", *words], tmp_path, columns=80)
    try:
        terminal.until("Running")
        assert terminal.hang_up() == 129
    finally:
        terminal.close()
    for program, options in (("dtj", ["--local"]), ("ringtrain", [])):
        listed = completed([str(Path(dtj).with_name(program)), "list", *options], cwd=tmp_path)
        assert "Stopped" in listed.stdout, listed.stdout + listed.stderr


@pytest.mark.parametrize("output", ["| head -1", ">&-", ">/dev/full"], ids=["reader-ends", "closed", "full"])
def test_a_job_goes_on_without_its_output(start: Start, output: str) -> None:
    """As `ringtrain run`: `dtj local job.yaml | head -1` trains to the end."""
    local = start("python", "-c", "print('done')")
    local.finish(0)
    done = completed(
        ["bash", "-o", "pipefail", "-c", f"{Path(sys.executable).with_name('dtj')} local {local.manifest} {output}"],
        cwd=local.directory,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    runs = json.loads(local.command("ringtrain", "list", "-o", "json"))
    assert [run["state"] for run in runs] == ["Succeeded", "Succeeded"]


def sleeping(workers: int) -> dict[str, Any]:
    """A job that ignores SIGTERM."""
    manifest = job("t", workers=workers)
    container = manifest["spec"]["worker"]["template"]["spec"]["containers"][0]
    container["command"] = ["sh", "-c", "trap '' TERM; sleep 3600 & wait"]
    return manifest


def test_ctrl_c_clears_the_panel(tmp_path: Path) -> None:
    """On a terminal: how long dtj waits stands where the panel was. Ctrl-C once more leaves nothing."""
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(sleeping(1)))
    terminal = Terminal([str(Path(sys.executable).parent / "dtj"), "local", "job.yaml"], tmp_path, columns=60)
    try:
        terminal.until(r"t-worker-0 +● rank 0 Running")
        terminal.type("\x03")
        terminal.until("stopping 1 rank .*\n?.*kill")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert list(tmp_path.glob("dtj-*")) == []
        shown = "".join(terminal.lines()).replace("^C", "")  # which the terminal puts anywhere, and wraps lines
        stopping = r"/logs *stopping 1 rank \(10 s; press Ctrl-C again to kill *them\)"
        assert re.search(stopping + r"state +Stopped *job took +\d+ s, 1 attempt", shown), shown
    finally:
        terminal.close()


def test_a_broken_manifest_starts_nothing(start: Start) -> None:
    """Problems are told with their fields before anything runs."""
    output = start("train", slotsPerWorker="two", backend="rings").finish(1)
    assert "spec.slotsPerWorker: is 'two'" in output
    assert "spec.backend: is 'rings', allowed: 'ring' or 'mpi'" in output
