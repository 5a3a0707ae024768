"""Gangs and the places that they compete for: devices, a node's network, Kubernetes' own PodGroups."""

import json
from collections.abc import Iterator

import pytest
from e2e.conftest import Kubectl, job, nodes
from e2e.programs import MEETING
from e2e.test_operator import SYSTEM, upgrade

DEVICE = "e2e.ringtrain.dev/device"


@pytest.fixture
def four_devices() -> Iterator[None]:
    """Four devices on one node, which nothing but these tests requests."""
    node, *_ = nodes("{.metadata.name}")
    fields = [f"/status/{kind}/{DEVICE.replace('/', '~1')}" for kind in ("capacity", "allocatable")]

    def set_devices(count: str) -> None:
        patch = [{"op": "add", "path": field, "value": count} for field in fields]
        SYSTEM("patch", "node", node, "--subresource=status", "--type=json", f"--patch={json.dumps(patch)}")

    set_devices("4")
    yield
    set_devices("0")


def with_devices(name: str, count: int, *command: str, **spec: object) -> dict[str, object]:
    """A job of two workers with `count` devices each, of one rank."""
    return job(name, *command, worker={"devices": {DEVICE: count}}, slotsPerWorker=1, **spec)


@pytest.mark.usefixtures("four_devices")
def test_gangs_that_compete_for_devices(kubectl: Kubectl) -> None:
    """Three jobs, of which two fit: each gets all its devices or none, and all three end well."""
    for name, count in (("one", 1), ("two", 2), ("three", 1)):
        kubectl.apply(with_devices(name, count, "python", "-c", MEETING))
    assert [kubectl.ended(name)["state"] for name in ("one", "two", "three")] == ["Succeeded"] * 3


@pytest.mark.usefixtures("four_devices")
def test_one_that_can_never_be_placed(kubectl: Kubectl) -> None:
    """It says what it lacks, and keeps no other job from its devices."""
    kubectl.apply(with_devices("large", 3, "python", "-c", MEETING, scheduling={"timeoutSeconds": 5}))
    kubectl.until(lambda: kubectl.dtj("why", "large"), says=DEVICE)
    kubectl.apply(with_devices("small", 2, "python", "-c", MEETING))
    assert kubectl.ended("small")["state"] == "Succeeded"
    kubectl.until(lambda: kubectl.dtj("why", "large"), says=DEVICE)
    assert kubectl.get("dtj", "large")["status"]["state"] in ("Pending", "Queued")


def test_two_jobs_in_the_network_of_one_node(privileged: Kubectl, containers: None) -> None:
    """Ports of neither collide with the other's."""
    node, *_ = nodes("{.metadata.name}")
    on_node = {"hostNetwork": True, "nodeSelector": {"kubernetes.io/hostname": node}}
    for name in ("one", "two"):
        privileged.apply(
            job(name, "python", "-c", MEETING, pod=on_node, launcher={"template": {"spec": {"hostNetwork": True}}})
        )
    for name in ("one", "two"):
        assert privileged.ended(name)["state"] == "Succeeded"
        assert "rank 1 of 2" in privileged.dtj("logs", name)


def test_a_pod_group_of_kubernetes(kubectl: Kubectl) -> None:
    """The operator creates a PodGroup and puts the pods of a job into it."""
    if "podgroups" not in SYSTEM("api-resources", "--api-group=scheduling.k8s.io", "--output=name"):
        pytest.skip("needs Kubernetes 1.36 with GenericWorkload and GangScheduling on, and scheduling.k8s.io/v1alpha2")
    upgrade("gangs.kubernetes=true")
    try:
        kubectl.apply(job("meeting", "sleep", "600"))
        kubectl.wait("dtj", "meeting", "condition=Running")
        assert kubectl("get", "podgroups.scheduling.k8s.io", "--output=name")
        assert kubectl("get", "pods", "--output=jsonpath={.items[*].spec.schedulingGroup.podGroupName}")
    finally:
        upgrade("gangs.kubernetes=false")
