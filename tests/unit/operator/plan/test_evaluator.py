"""The evaluator: one pod beside the gang that fails nothing and ends with the job."""

import json
from typing import Any

import pytest
from support.jobs import job
from support.planworld import World, settled, started

from ringtrain_client.jobs.causes import explain_job
from ringtrain_operator.build.names import ObjectRef
from ringtrain_operator.contract import CHECKPOINT_DIR
from ringtrain_operator.observe.model import Refusal

NAME = "digits-evaluator"
CLAIM = {"persistentVolumeClaim": {"claimName": "checkpoints"}}


def evaluated(evaluator: dict[str, Any] | None = None, **spec: Any) -> World:
    """A job whose gang and evaluator run."""
    return started(job(evaluator=evaluator or {}, checkpoint=CLAIM, **spec))


@pytest.fixture
def w() -> World:
    return evaluated()


def state(w: World) -> str:
    """Return the evaluator's state in the status."""
    return w.status.evaluator.state


def gang_ends(w: World, code: int) -> None:
    """Launcher and workers have ended."""
    w.launcher_ends(code, unseen=True)
    for index in (0, 1):
        w.pod_ends(f"digits-worker-{index}", code)
    w.settle()


def test_it_starts_with_the_gang_outside_of_its_world() -> None:
    """Its task is `evaluator`, the cluster is the ranks', the checkpoints are the job's."""
    w = evaluated(slotsPerWorker=2)
    env = {e["name"]: e.get("value") for e in w.pods[NAME]["spec"]["containers"][0]["env"]}
    config = json.loads(env["TF_CONFIG"])
    assert config["task"] == {"type": "evaluator", "index": 0}
    assert config["cluster"]["worker"][:3] == [
        "digits-worker-0.digits:7500",
        "digits-worker-0.digits:7501",
        "digits-worker-1.digits:7500",
    ]
    assert env["RINGTRAIN_ROLE"] == "evaluator"
    assert env["RINGTRAIN_CHECKPOINT_DIR"].startswith(f"{CHECKPOINT_DIR}/digits-")
    assert state(w) == "Running"


def test_the_gang_does_not_wait_for_it() -> None:
    """It runs while the evaluator finds no node."""
    w = settled(job(evaluator={}))
    for name in ("digits-launcher", "digits-worker-0", "digits-worker-1"):
        w.pod_runs(name)
    w.pod_waits(NAME, "Unschedulable", "0/3 nodes")
    w.launcher_says("Running")
    w.settle()
    assert (w.status.state, state(w)) == ("Running", "Pending")


def test_its_failure_fails_nothing_and_is_said(w: World) -> None:
    """It is made anew; status and event say what its last line was."""
    w.pod_ends(NAME, 3, "Traceback\nValueError: no such layer\n")
    w.settle()
    assert NAME in w.pods
    assert (w.status.state, w.status.attempt, w.status.restarts) == ("Running", 1, 0)
    assert w.status.evaluator.failures == 1
    assert w.status.evaluator.message == f"{NAME} ended with exit code 3: ValueError: no such layer"
    (event,) = [event for event in w.events if event.reason == "EvaluatorFailed"]
    assert (
        event.message
        == f"{NAME} on node node-of-{NAME} ended with exit code 3: ValueError: no such layer; it will be replaced"
    )


def test_a_refusal_of_its_pod_is_said() -> None:
    """The gang runs without it, so nothing else tells. When the API takes the pod, the message is gone."""
    w = World(job(evaluator={"devices": {"nvidia.com/gpu": 1}}))
    refused = Refusal(ObjectRef("Pod", NAME), 403, "Forbidden", "exceeded quota: limits.nvidia.com/gpu")
    w.refusals = (refused,)
    w.start_gang()
    del w.pods[NAME]
    w.settle()
    assert w.status.evaluator.message == str(refused)
    why = [line for line in explain_job(w.job, [], []) if "evaluator" in line]
    assert why == [f"  the evaluator is {state(w)}: {w.status.evaluator.message}"]
    w.refusals = ()
    w.settle()
    assert (state(w), w.status.evaluator.message) == ("Pending", "")


def test_all_its_failures_are_counted(w: World) -> None:
    """Those of more than an hour ago, too, after which it is made anew at once."""
    for _ in range(3):
        w.pod_ends(NAME, 3)
        w.settle()
        assert (state(w), NAME in w.pods) == ("Pending", True)
        w.run(seconds=4000)
        w.pod_runs(NAME)
        w.settle()
    assert (w.status.evaluator.failures, state(w)) == (3, "Running")


@pytest.mark.parametrize(("reason", "text"), [("DeadlineExceeded", "DeadlineExceeded"), ("", "Failed")])
def test_an_end_without_an_exit_code_has_the_pods_reason(w: World, reason: str, text: str) -> None:
    """Or its phase: a kubelet that never started its container knows no code."""
    w.pods[NAME]["status"] = {"phase": "Failed", "reason": reason}
    w.settle()
    assert w.status.evaluator.message == f"{NAME} ended ({text})"


def test_an_end_that_a_clock_ahead_noted_holds_it_back_no_longer(w: World) -> None:
    """The next operator's clock is right, an hour behind: it is made after its pause, counted from now."""
    for _ in range(2):
        w.pod_ends(NAME, 3)
        w.settle()
        w.settle()
        if NAME in w.pods:
            w.pod_runs(NAME)
            w.settle()
    w.run(hours=-1)
    assert NAME not in w.pods
    w.run(seconds=1)
    assert NAME in w.pods


def test_one_that_ended_well_is_done(w: World) -> None:
    """It knows when it has seen the last checkpoint: it is not made again, nor in the next attempt."""
    w.pod_ends(NAME, 0)
    w.settle()
    assert state(w) == "Succeeded"
    w.launcher_ends(1)
    w.go_on(seconds=5)
    del w.pods[NAME]
    w.settle()
    assert w.status.attempt == 2
    assert NAME not in w.pods
    assert state(w) == "Succeeded"
    assert w.reasons().count("EvaluatorSucceeded") == 1


@pytest.mark.parametrize("policy", ["None", "Running", "All"])
def test_after_a_success_it_has_its_time(policy: str) -> None:
    """For the last checkpoint: timeoutSeconds, then it is asked to end; the job has succeeded at once."""
    w = evaluated({"timeoutSeconds": 120}, runPolicy={"cleanPodPolicy": policy})
    gang_ends(w, 0)
    assert (w.status.state, state(w)) == ("Succeeded", "Running")
    w.run(seconds=60)
    w.go_on()
    assert NAME in w.pods
    assert "deletionTimestamp" not in w.pods[NAME]["metadata"]
    assert w.plan().requeue_after_s == 60
    w.run(seconds=60)
    w.go_on()
    assert NAME not in w.pods
    assert state(w) == "Stopped"


@pytest.mark.parametrize(
    ("code", "becomes", "event"), [(0, "Succeeded", "EvaluatorSucceeded"), (1, "Failed", "EvaluatorFailed")]
)
def test_how_it_ends_after_the_job_is_said(w: World, code: int, becomes: str, event: str) -> None:
    """The job's state stays; the pod stays for its log, as other ended pods do."""
    gang_ends(w, 0)
    w.pod_ends(NAME, code)
    w.settle()
    assert (w.status.state, state(w)) == ("Succeeded", becomes)
    assert w.reasons().count(event) == 1
    w.run(seconds=1000)
    assert NAME in w.pods


def test_a_job_that_failed_takes_it_along() -> None:
    """There is no last checkpoint to wait for."""
    w = evaluated(runPolicy={"backoffLimit": 0})
    gang_ends(w, 1)
    w.go_on()
    assert (w.status.state, NAME in w.pods, state(w)) == ("Failed", False, "Stopped")


def test_a_job_is_not_deleted_under_it() -> None:
    """ttlSecondsAfterFinished waits for its time, and no longer than it takes."""
    w = evaluated({"timeoutSeconds": 120}, runPolicy={"ttlSecondsAfterFinished": 5})
    gang_ends(w, 0)
    w.run(seconds=60)
    assert not w.deleted
    w.pod_ends(NAME, 0)
    w.apply(w.plan())
    w.apply(w.plan())
    assert w.deleted


def test_suspended_there_is_none(w: World) -> None:
    """And one that was done begins anew with the job."""
    w.pod_ends(NAME, 0)
    w.settle()
    w.change(runPolicy={"suspend": True})
    w.run(seconds=40)
    w.go_on()
    assert NAME not in w.pods
    w.change(runPolicy={"suspend": False})
    assert NAME in w.pods


def test_it_outlives_attempts() -> None:
    """The gang restarts, and it goes on."""
    w = evaluated()
    uid = w.pods[NAME]["metadata"]["uid"]
    w.launcher_ends(1)
    w.go_on(seconds=5)
    assert (w.status.attempt, w.pods[NAME]["metadata"]["uid"]) == (2, uid)
    assert "deletionTimestamp" not in w.pods[NAME]["metadata"]


def test_an_evaluator_whose_container_has_ended_before_its_pod_succeeded(w: World) -> None:
    """A kubelet writes the container's exit code first and the pod's phase a moment later."""
    w.pod_ends(NAME, 0)
    w.pods[NAME]["status"]["phase"] = "Running"
    gang_ends(w, 0)
    assert (w.status.state, state(w), w.status.evaluator.failures) == ("Succeeded", "Succeeded", 0)
    assert "EvaluatorFailed" not in w.reasons()
