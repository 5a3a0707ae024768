"""Jobs in images that have nothing of ringtrain: the operator brings the agent.

Operator, launcher and agents are real; a pod's containers are processes in the roots of their images, under
a user that no image knows, with a root that nobody can write to.
"""

from pathlib import Path
from typing import Any

import pytest
from support import jobs
from support.cluster import OpenCluster
from support.jobs import state
from support.kubelet import Kubelet
from support.kubelet.roots import USER, Image, RootRuntime, why_no_roots
from support.operating import running_operator
from support.standalone import BUSYBOX, build_standalone, shell_only, why_not_built

from ringtrain_operator.build import AgentSource, Settings
from ringtrain_operator.build.settings import AgentVolume
from ringtrain_operator.cluster.api.resources import JOBS

WHY_NOT = why_no_roots() or why_not_built() or ("" if BUSYBOX.exists() else "needs busybox-static")
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
Json = dict[str, Any]
ENDED_WITHIN_S = 120.0
AGENT = "registry.test/agent:1"
# What an image may set for its own programs, and what must not reach the agent's Python.
OF_THE_IMAGE = {"LD_LIBRARY_PATH": "/image/lib", "PYTHONHOME": "/image/python", "PYTHONPATH": "/image/packages"}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The agent's image: nothing but the self-contained directory."""
    return Image(build_standalone(tmp_path_factory.mktemp("agent") / "root"))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """An image with a shell, and neither Python nor a C library."""
    image = shell_only(tmp_path_factory.mktemp("shell") / "root")
    assert not list(image.rglob("*python*"))
    assert not list(image.rglob("*.so*"))
    return Image(image, {"FROM_IMAGE": "yes", **OF_THE_IMAGE})


async def run(
    cluster: OpenCluster, manifest: Json, images: dict[str, Image], folder: Path, volume: AgentVolume
) -> tuple[Json, str]:
    """The job after its end, and its launcher's output."""
    settings = Settings(agent=AgentSource(AGENT, volume))
    name = manifest["metadata"]["name"]
    async with cluster() as c:
        ns = await c.new_namespace()
        async with (
            Kubelet(c.api, RootRuntime(images), folder, namespace=ns),
            running_operator(c.operator_connection, namespaces=(ns,), objects=settings),
        ):
            await c.api.create(JOBS, ns, manifest)
            done = await c.until(JOBS, ns, name, lambda j: state(j) in ("Succeeded", "Failed"), ENDED_WITHIN_S)
            log = b"".join([line async for line in c.api.pod_log(ns, f"{name}-launcher")]).decode()
    return done, log


@pytest.mark.parametrize("volume", ["InitContainer", "ImageVolume"])
async def test_a_program_runs_in_an_image_without_python(
    open_cluster: OpenCluster, agent: Image, shell: Image, tmp_path: Path, volume: AgentVolume
) -> None:
    """Its ranks have the image's environment and their place in the world, and nothing of the agent's Python."""
    script = (
        "echo rank $RANK of $WORLD_SIZE, user $(id -u); env | sort; touch /new || echo read-only; echo >/tmp/new"
    )
    manifest = jobs.job("shell")
    main = manifest["spec"]["worker"]["template"]["spec"]["containers"][0]
    main.update(image="shell:1", command=["sh", "-c", script], securityContext={"readOnlyRootFilesystem": True})
    done, log = await run(open_cluster, manifest, {AGENT: agent, "shell:1": shell}, tmp_path, volume)
    assert state(done) == "Succeeded", f"{done['status']}\n{log}"
    for rank in range(2):
        assert f"[{rank}] rank {rank} of 2, user {USER}\n" in log
        for name, value in {"FROM_IMAGE": "yes", **OF_THE_IMAGE}.items():
            assert f"[{rank}] {name}={value}\n" in log
        assert f"[{rank}] read-only\n" in log
    assert "ASIDE" not in log
    assert "LC_CTYPE" not in log
    assert "HOME=" not in log.replace("PYTHONHOME=", "")
