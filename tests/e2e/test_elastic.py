"""Worlds that change, and pods that are taken away: of elastic jobs and of gangs that restart."""

import json
from typing import Any

import pytest
from e2e.conftest import Kubectl, job
from e2e.programs import ELASTIC, UNTIL_DISTURBED


def elastic(workers: int, *, last: int, on_loss: str = "Replace") -> dict[str, Any]:
    """A job that ends ten steps into a world after its first, of `last` ranks."""
    limits = {"minReplicas": 1, "maxReplicas": 4, "onLoss": on_loss, "joinDelaySeconds": 1}
    size = {"env": [{"name": "SIZE", "value": str(last)}]}
    return job("world", "python", "-c", ELASTIC, workers=workers, container=size, elastic=limits)


def start(kubectl: Kubectl, made: dict[str, Any]) -> None:
    """Apply, and return when its ranks train."""
    kubectl.apply(made)
    kubectl.wait("dtj", made["metadata"]["name"], "jsonpath={.status.progress.step}")


def ended_in_one_attempt(kubectl: Kubectl) -> dict[str, Any]:
    """Status of the job, which was restarted by nothing."""
    status = kubectl.ended("world")
    assert (status["state"], status["attempt"], status["restarts"]) == ("Succeeded", 1, 0)
    return status


@pytest.mark.usefixtures("containers")
def test_a_killed_rank_is_replaced_in_its_pod(kubectl: Kubectl) -> None:
    """Its process alone: pods stay what they are."""
    start(kubectl, elastic(2, last=2))
    before = kubectl("get", "pods", "--output=jsonpath={.items[*].metadata.uid}")
    kubectl("exec", "world-worker-1", "--", "sh", "-c", "kill -9 $(cat /tmp/rank)")
    status = ended_in_one_attempt(kubectl)
    assert kubectl("get", "pods", "--output=jsonpath={.items[*].metadata.uid}") == before
    assert status["elastic"]["lostWorkers"] == 0


def test_a_deleted_worker_is_replaced(kubectl: Kubectl) -> None:
    """A pod that is gone at once, as with its node, comes back as the next of its index."""
    start(kubectl, elastic(2, last=2))
    kubectl("delete", "pod", "world-worker-1", "--grace-period=0", "--force")
    status = ended_in_one_attempt(kubectl)
    assert status["elastic"]["lostWorkers"] == 1
    assert "WorkerLost" in kubectl("get", "events", "--output=jsonpath={.items[*].reason}")


def test_a_worker_is_lost_and_the_world_shrinks(kubectl: Kubectl) -> None:
    """With onLoss: Shrink the others go on at once, and grow again when the new pod is there."""
    start(kubectl, elastic(3, last=3, on_loss="Shrink"))
    kubectl("delete", "pod", "world-worker-2", "--grace-period=0", "--force")
    ended_in_one_attempt(kubectl)
    assert "world 2 has 2 ranks" in kubectl.dtj("logs", "world")


def test_shrunk_by_two(kubectl: Kubectl) -> None:
    """Of four workers two leave, without a lost step."""
    start(kubectl, elastic(4, last=2))
    kubectl("scale", "dtj", "world", "--replicas=2")
    status = ended_in_one_attempt(kubectl)
    assert (status["elastic"].get("lostSteps", 0), status["elastic"].get("lostWorkers", 0)) == (0, 0)
    kubectl("wait", "pod", "world-worker-3", "--for=delete", "--timeout=60s")


def test_grown(kubectl: Kubectl) -> None:
    """A third worker joins the two that train."""
    start(kubectl, elastic(2, last=3))
    kubectl("scale", "dtj", "world", "--replicas=3")
    status = ended_in_one_attempt(kubectl)
    assert status["elastic"].get("lostSteps", 0) == 0


@pytest.mark.usefixtures("containers")
def test_the_launcher_of_a_world_is_deleted(kubectl: Kubectl) -> None:
    """Ranks wait for another, and go on: no attempt is lost."""
    start(kubectl, elastic(2, last=3))
    before = kubectl.get("pod", "world-worker-0")["metadata"]["uid"]
    kubectl("delete", "pod", "world-launcher")
    kubectl("scale", "dtj", "world", "--replicas=3")
    ended_in_one_attempt(kubectl)
    assert kubectl.get("pod", "world-worker-0")["metadata"]["uid"] == before


def test_the_launcher_of_a_gang_is_deleted(kubectl: Kubectl) -> None:
    """The gang restarts, and the job is not charged for it."""
    start(kubectl, job("gang", "python", "-c", UNTIL_DISTURBED))
    kubectl("delete", "pod", "gang-launcher", "--grace-period=0", "--force")
    disturbed_once(kubectl)


def test_an_evicted_worker(kubectl: Kubectl) -> None:
    """By the eviction API, as a drain or the descheduler do it: the gang restarts, uncounted."""
    start(kubectl, job("gang", "python", "-c", UNTIL_DISTURBED))
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "gang-worker-1", "namespace": kubectl.namespace},
    }
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/gang-worker-1/eviction"
    kubectl("create", "--raw", path, "--filename=-", stdin=json.dumps(eviction))
    disturbed_once(kubectl)


@pytest.mark.usefixtures("containers")
def test_a_drained_node(kubectl: Kubectl) -> None:
    """`kubectl drain` ends in time; the gang comes back where there is room, at the latest on that node."""
    start(kubectl, job("gang", "python", "-c", UNTIL_DISTURBED))
    node = kubectl.get("pod", "gang-worker-0")["spec"]["nodeName"]
    options = ("--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s")
    try:
        kubectl("drain", node, "--pod-selector=ringtrain.dev/job-name=gang", *options)
        kubectl.wait("dtj", "gang", "jsonpath={.status.attempt}=2")
    finally:
        kubectl("uncordon", node)
    disturbed_once(kubectl)


def disturbed_once(kubectl: Kubectl) -> None:
    """The second attempt ends well, and the first is no failure of the job's."""
    status = kubectl.ended("gang")
    assert (status["state"], status["attempt"], status["restarts"]) == ("Succeeded", 2, 0)
    assert status["disruptions"] == 1
