"""Jobs that cannot start: within a time they say why, and hold neither nodes nor devices any more."""

from typing import Any

import pytest
from e2e.conftest import BARE, Kubectl, job
from e2e.programs import GREEDY, MEETING, SHELL

SOON = {"startTimeoutSeconds": 4}
MISSING = {"name": "missing"}
UNSTARTABLE: dict[str, dict[str, Any]] = {
    "ErrImageNeverPull": {"container": {"image": "registry.invalid/missing:1", "imagePullPolicy": "Never"}},
    "CreateContainerConfigError": {"container": {"envFrom": [{"configMapRef": MISSING}]}},
    "InvalidImageName": {"container": {"image": f"train@sha256:{'AB' * 32}"}},
    'persistentvolumeclaim "missing" not found': {
        "pod": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}]}
    },
    'secret "missing" not found': {
        "pod": {"volumes": [{"name": "data", "secret": {"secretName": "missing"}}]},
        "container": {"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
    },
}


def until_released(kubectl: Kubectl) -> None:
    """Return when no node has a pod of the job to run. One that has ended may stay, for its log."""
    active = "--field-selector=status.phase!=Failed,status.phase!=Succeeded"
    kubectl.until(lambda: kubectl("get", "pods", active, "--output=name") or "none", says="none")


@pytest.mark.parametrize("why", UNSTARTABLE)
@pytest.mark.usefixtures("containers")
def test_what_never_starts_is_bounded(kubectl: Kubectl, why: str) -> None:
    """After startTimeoutSeconds the job has failed and says why; its pods are gone."""
    kubectl.apply(job("bounded", "python", "-c", MEETING, networking=SOON, **UNSTARTABLE[why]))
    status = kubectl.ended("bounded")
    assert (status["state"], status["failure"]["reason"]) == ("Failed", "CannotStart")
    assert why in status["message"]
    assert why in kubectl.dtj("why", "bounded")
    until_released(kubectl)


@pytest.mark.usefixtures("containers")
def test_root_where_root_is_forbidden(kubectl: Kubectl) -> None:
    """The image's user is root and the namespace refuses that: the message names the field that helps."""
    kubectl.apply(job("shell", "sh", "-c", SHELL, image=BARE, networking=SOON))
    status = kubectl.ended("shell")
    assert status["state"] == "Failed"
    assert "runAsUser" in status["message"]


def test_a_quota(kubectl: Kubectl) -> None:
    """Too small for the gang, it keeps the whole gang out and says so; enlarged, the job runs."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pods"}, "spec": {"hard": {"pods": "2"}}}
    kubectl.apply(quota)
    kubectl.apply(job("meeting", "python", "-c", MEETING))
    kubectl.until(lambda: kubectl.dtj("why", "meeting"), says="exceeded quota")
    kubectl.apply(quota | {"spec": {"hard": {"pods": "3"}}})
    assert kubectl.ended("meeting")["state"] == "Succeeded"


def test_a_quota_on_limits_and_a_limit_range(kubectl: Kubectl) -> None:
    """Each container, also those of the operator, has limits: the worker's by the LimitRange."""
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "compute"},
            "spec": {"hard": {"limits.cpu": "8", "limits.memory": "4Gi", "requests.cpu": "2"}},
        }
    )
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": "default"},
            "spec": {
                "limits": [
                    {
                        "type": "Container",
                        "default": {"cpu": "1", "memory": "512Mi"},
                        "defaultRequest": {"cpu": "100m", "memory": "64Mi"},
                    }
                ]
            },
        }
    )
    kubectl.apply(job("meeting", "python", "-c", MEETING))
    assert kubectl.ended("meeting")["state"] == "Succeeded"


def test_memory_beyond_its_limit(kubectl: Kubectl, containers: None) -> None:
    """The kernel kills the rank: the failure says so, and a second kill at the same limit is the last."""
    kubectl.apply(job("greedy", "python", "-c", GREEDY, container={"resources": {"limits": {"memory": "256Mi"}}}))
    status = kubectl.ended("greedy")
    assert (status["state"], status["attempt"]) == ("Failed", 2)
    assert "memory" in status["message"]
    assert status["failure"]["rank"] == 1


def test_an_exit_code_that_fails_the_job(kubectl: Kubectl) -> None:
    """A rule of the job decides; the failure names rank, code and its last line."""
    program = "import os, sys; print('no such data'); sys.exit(3 if os.environ['RANK'] == '1' else 0)"
    rules = [{"action": "FailJob", "onExitCodes": {"values": [3]}}]
    kubectl.apply(job("fails", "python", "-c", program, runPolicy={"failureRules": rules}))
    status = kubectl.ended("fails")
    assert (status["state"], status["attempt"]) == ("Failed", 1)
    assert (status["failure"]["rank"], status["failure"]["exitCode"]) == (1, 3)
    assert status["failure"]["logTail"] == ["no such data"]


def test_an_active_deadline(kubectl: Kubectl) -> None:
    """Past it the job has failed and its pods are gone."""
    kubectl.apply(job("late", "sleep", "600", runPolicy={"activeDeadlineSeconds": 5}))
    status = kubectl.ended("late")
    assert (status["state"], status["reason"]) == ("Failed", "DeadlineExceeded")
    until_released(kubectl)
