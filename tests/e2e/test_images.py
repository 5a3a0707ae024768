"""Images of others, to which the operator adds its agent: both ways, any user, with and without a writable root."""

import re
from collections.abc import Iterator

import pytest
from e2e.conftest import BARE, Kubectl, job, nodes
from e2e.programs import SHELL
from e2e.test_operator import upgrade

pytestmark = pytest.mark.usefixtures("containers")


@pytest.fixture(scope="module", params=["ImageVolume", "InitContainer"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Value of `agent.volume` of the release during a test. Afterwards it is Auto again."""
    if request.param == "ImageVolume":
        runtimes = nodes("{.status.nodeInfo.containerRuntimeVersion}")
        if not all(re.match(r"containerd://(2\.[1-9]|[3-9])", runtime) for runtime in runtimes):
            pytest.skip(f"image volumes need containerd 2.1 or newer on every node: {', '.join(runtimes)}")
        kubelets = nodes("{.status.nodeInfo.kubeletVersion}")
        if not all(re.match(r"v1\.(3[6-9]|[4-9])", kubelet) for kubelet in kubelets):
            pytest.skip(f"image volumes need Kubernetes 1.36 or newer: {', '.join(kubelets)}")
    upgrade(f"agent.volume={request.param}")
    yield request.param
    upgrade("agent.volume=Auto")


def test_another_user_and_a_read_only_root(kubectl: Kubectl, way: str) -> None:
    """A job of an image without Python runs as another user with a read-only root, under Pod Security `restricted`."""
    read_only = {"securityContext": {"readOnlyRootFilesystem": True}}
    kubectl.apply(
        job("shell", "sh", "-c", SHELL, image=BARE, container=read_only, pod={"securityContext": {"runAsUser": 12345}})
    )
    assert kubectl.ended("shell")["state"] == "Succeeded"
    output = kubectl.dtj("logs", "shell")
    assert {f"[{rank}] rank {rank} of 2 is user 12345 and writes to /tmp" for rank in (0, 1)} <= set(
        output.splitlines()
    )
    mounted = kubectl("get", "pod", "shell-worker-0", "--output=jsonpath={.spec.volumes[*].image.reference}")
    assert bool(mounted) == (way == "ImageVolume")


def test_the_images_own_root(privileged: Kubectl) -> None:
    """A job runs as root in a namespace without Pod Security."""
    privileged.apply(job("shell", "sh", "-c", SHELL, image=BARE))
    assert privileged.ended("shell")["state"] == "Succeeded"
    assert "[1] rank 1 of 2 is user 0 and writes to everywhere" in privileged.dtj("logs", "shell")


def test_a_program_that_the_image_lacks(privileged: Kubectl) -> None:
    """Its name is in the failure, and no attempt is lost on it."""
    privileged.apply(job("shell", "python", "-c", "pass", image=BARE))
    status = privileged.ended("shell")
    assert (status["state"], status["failure"]["reason"], status["attempt"]) == ("Failed", "CannotStart", 1)
    assert "python" in status["message"]
