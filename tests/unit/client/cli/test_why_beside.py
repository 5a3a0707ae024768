"""Data workers and the evaluator in `dtj why`, `dtj list`, `dtj logs` and the metrics."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.jobs import job
from support.planworld import World, started

from ringtrain_client.cli.main import main
from ringtrain_client.jobs.causes import explain_job
from ringtrain_client.local.past_runs import write_job
from ringtrain_operator.cluster.metrics import OperatorMetrics
from ringtrain_operator.cluster.queue import JobKey

KEY = JobKey("default", "digits")


def served() -> World:
    """Return a job with two data workers and an evaluator that all run. Ranks wait 23 % of their time."""
    w = started(job(dataWorkers={"replicas": 2}, evaluator={}))
    waits(w, 0.23)
    return w


def waits(w: World, fraction: float | None) -> None:
    """Set the launcher's report."""
    w.launcher_says("Running", 12)
    w.report["data"] = {"waitFraction": fraction}
    w.settle()


def why(w: World) -> str:
    """Return the output of `dtj why`."""
    return "\n".join(explain_job(json.loads(json.dumps(w.job)), [], []))


def test_why_names_some_pods_of_many_and_first_those_that_say_more() -> None:
    """Of a thousand pending pods, the one whose image cannot be pulled is first, and most others are only counted."""
    named = [{"name": f"digits-worker-{index}", "uid": str(index), "labels": {}} for index in range(1000)]
    pods = [{"metadata": meta, "spec": {}, "status": {"phase": "Pending"}} for meta in named]
    waiting = {"reason": "ImagePullBackOff", "message": "no such tag"}
    pods[700]["status"] |= {"containerStatuses": [{"name": "train", "state": {"waiting": waiting}}]}
    told = [line.strip() for line in explain_job(json.loads(json.dumps(served().job)), pods, []) if "pod" in line]
    assert told[0] == "pod digits-worker-700: ImagePullBackOff: no such tag"
    assert told[1] == "pod digits-worker-0 is Pending, not scheduled yet"
    assert told[10:] == ["and 990 more pods like these"]


def test_why_prints_the_warning_of_a_success() -> None:
    """Ranks that trained each for itself succeed, too. A success without a warning is one line."""
    warning = "none of the 2 ranks connected to another one"
    for text, lines in (("", []), (warning, [f"  warning: {warning}"])):
        w = started(job())
        w.launcher_ends(0, warning=text)
        assert [line for line in why(w).splitlines() if "start" not in line] == ["digits is Succeeded", *lines]


def test_why_tells_what_keeps_input_away() -> None:
    """The output has the condition, the waiting time of ranks, and the ends of the last pods."""
    w = served()
    assert "ranks wait for input 23 % of their time; 2 of 2 data workers ready" in why(w)
    for name in ("digits-data-0", "digits-data-1"):
        w.pod_ends(name, 9, "no space left on device")
    w.pod_ends("digits-evaluator", 1, "KeyError: 'accuracy'")
    w.settle()
    told = why(w)
    assert "InputStalled=True since 2026-01-01T00:00:00Z: DataWorkersLost: no data worker is ready" in told
    assert "digits-data-1 on node node-of-digits-data-1 ended with exit code 9: no space left on device" in told
    assert "digits-evaluator on node node-of-digits-evaluator ended with exit code 1: KeyError: 'accuracy'" in told
    assert "the evaluator failed 1 time; the job does not fail because of it" in told


def test_it_is_counted_once() -> None:
    """Counters follow changes of the status; the gauge is removed with the job, and if its value is unknown."""
    w, metrics = served(), OperatorMetrics()
    before = w.job["status"]
    metrics.record_status(KEY, before)
    assert 'ringtrain_job_input_wait_ratio{job_name="digits",job_namespace="default"} 0.23' in metrics.text().decode()
    for name in ("digits-data-0", "digits-data-1", "digits-evaluator"):
        w.pod_ends(name, 1)
    w.settle()
    for _ in range(2):
        metrics.status_changed(before, w.job["status"])
        before = w.job["status"]
    text = metrics.text().decode()
    for name, value in (("data_workers_lost", 2), ("evaluator_failures", 1), ("input_stalls", 1)):
        assert f"ringtrain_job_{name}_total {value}.0\n" in text
    metrics.job_deleted(KEY)
    assert 'job_name="digits"' not in metrics.text().decode()


def test_local_logs_of_pods_beside_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pods' own files are printed; the error for a missing one lists the existing ones."""
    w, runner = served(), CliRunner()
    directory = tmp_path / "runs" / "digits-1"
    (directory / "pods").mkdir(parents=True)
    write_job(directory, json.loads(json.dumps(w.job)))
    (directory / "pods" / "digits-data-1.log").write_text("decoded 1\ndecoded 2\n")
    (directory / "pods" / "digits-evaluator.log").write_text("accuracy 0.9\n")
    monkeypatch.chdir(tmp_path)
    assert runner.invoke(main, ["logs", "digits", "--local", "--data-worker=1"]).stdout == "decoded 1\ndecoded 2\n"
    tail = runner.invoke(main, ["logs", "digits", "--local", "--data-worker=1", "--tail=1"])
    assert tail.stdout == "decoded 2\n"
    assert runner.invoke(main, ["logs", "digits", "--local", "--evaluator"]).stdout == "accuracy 0.9\n"
    absent = runner.invoke(main, ["logs", "digits", "--local", "--data-worker=7"])
    assert absent.exit_code == 1
    assert "digits-data-7.log does not exist" in absent.stderr
    assert "digits-data-1.log, digits-evaluator.log" in absent.stderr
    both = runner.invoke(main, ["logs", "digits", "--local", "--rank=0", "--evaluator"])
    assert both.exit_code == 2
