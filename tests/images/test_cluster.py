"""The operator's image and the samples' images on a real API server, as they are installed.

The operator is a container with the arguments of its Deployment and the token of its ServiceAccount; its pods are
containers of the images that the samples name, with a root that they cannot write to.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from support.apiserver import ControlPlane, why_unavailable
from support.cluster import Cluster, real_cluster
from support.image_names import ROOT, name_of, targets
from support.images import USER, Engine
from support.installation import manifests
from support.jobs import state
from support.kubelet import Kubelet
from support.kubelet.images import ImageRuntime
from support.ports import free_ports

from ringtrain_operator.cluster.api.resources import JOBS

pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: volumes are given to the containers' user"),
]
Json = dict[str, Any]
TRAINED_WITHIN_S = 300.0
# What makes a sample short enough for a test; the others are short as they are.
ARGUMENTS = {
    "digits-ring": ["--epochs", "3"],
    "digits-mpi": ["--epochs", "3"],
    "torch-mnist": ["--epochs", "1"],
    "torch-lm": ["--steps", "5"],
    "torch-diloco": ["--steps", "25"],
    "torch-resnet": ["--model=resnet14", "--image-size=64", "--batch-size=2", "--iterations=1", "--batches=1"],
    "tensorflow-mnist": ["--epochs", "1"],
    "keras-mnist": ["--epochs", "1"],
    "jax-mnist": ["--epochs", "1"],
}
# GPUs; volumes from a provisioner; Kueue; a bucket
NEEDS_MORE = {"gpu", "digits-pvc", "digits-queued", "digits-s3"}


def samples() -> list[str]:
    """The samples whose images are under test."""
    found = []
    for path in sorted((ROOT / "manifests" / "samples").glob("*.yaml")):
        images = {line.split()[-1] for line in path.read_text().splitlines() if "image:" in line}
        if path.stem not in NEEDS_MORE and images <= {name_of(target) for target in targets()}:
            found.append(path.stem)
    return found


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real control plane with the CRD and the operator's rights."""
    if reason := why_unavailable():
        pytest.skip(reason)
    crds = tuple(yaml.safe_load_all((ROOT / "manifests" / "crd.yaml").read_text()))
    plane = ControlPlane.start(tmp_path_factory.mktemp("control-plane"), crds)
    yield plane
    plane.stop()


def account_folder(plane: ControlPlane, folder: Path) -> Path:
    """Create the service account folder that a kubelet mounts into the operator's pod."""
    folder.mkdir()
    (folder / "ca.crt").write_bytes(plane.ca_file.read_bytes())
    (folder / "namespace").write_text("ringtrain-system")
    (folder / "token").write_text(plane.operator_token)
    return folder


@asynccontextmanager
async def operator_container(engine: Engine, plane: ControlPlane, folder: Path) -> AsyncIterator[str]:
    """The operator as its Deployment has it; yields where it serves. It must end well when it is told to."""
    (deployment,) = [o for o in manifests() if o["kind"] == "Deployment"]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    port, server = free_ports(1)[0], plane.url.removeprefix("https://").split(":")
    account = account_folder(plane, folder / "account")
    command = engine.command(
        container["image"],
        f"--volume={account}:/var/run/secrets/kubernetes.io/serviceaccount:ro",
        argv=[*container["args"], f"--listen=127.0.0.1:{port}"],
        env={
            "KUBERNETES_SERVICE_HOST": server[0],
            "KUBERNETES_SERVICE_PORT": server[1],
            "POD_NAME": f"ringtrain-operator-{port}",
        },
    )
    log = folder / "operator.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(*command, stdout=out, stderr=out)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(60):
            code = await process.wait()
        assert code == 0, f"the operator ended with {code}:\n{log.read_text()[-3000:]}"


async def until_answer(url: str) -> str:
    """Return the operator's first answer with status 200."""
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as answer:
                    text = await answer.text()
                    if answer.status == 200:
                        return text
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)  # another process: there is no event to wait on


def test_the_operator_becomes_ready(engine: Engine, control_plane: ControlPlane, tmp_path: Path) -> None:
    """With its own token and rights: alive, ready, metrics told, and a good end on SIGTERM."""

    async def look() -> None:
        async with operator_container(engine, control_plane, tmp_path) as url:
            assert await until_answer(f"{url}/healthz") == "ok"
            assert await until_answer(f"{url}/readyz") == "ok"
            assert "ringtrain_reconciles_total" in await until_answer(f"{url}/metrics")

    asyncio.run(look())


@pytest.mark.parametrize("sample", samples())
def test_a_sample_succeeds_in_its_image(
    engine: Engine, control_plane: ControlPlane, tmp_path: Path, sample: str
) -> None:
    """From `kubectl apply` of the sample to Succeeded, every rank heard of in the launcher's log."""
    job = yaml.safe_load((ROOT / "manifests" / "samples" / f"{sample}.yaml").read_text())
    worker = job["spec"]["worker"]["template"]["spec"]["containers"][0]
    worker["command"] += ARGUMENTS.get(sample, [])
    if job["spec"]["backend"] == "mpi":  # the pods share this machine's network, of which Open MPI skips loopback
        options = job["spec"].setdefault("mpi", {}).setdefault("options", [])
        options += ["--mca", "btl_tcp_if_include", "lo"]

    async def run() -> None:
        async with real_cluster(control_plane) as cluster:
            await succeed(engine, cluster, job, tmp_path)

    asyncio.run(run())


ASKS = """
import importlib.util, os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], importlib.util.find_spec("ringtrain"))
"""


def test_a_job_succeeds_in_an_image_without_ringtrain(
    engine: Engine, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Its own Python runs as ranks; agent and launcher come from the image `agent`."""
    image = name_of("operator")  # of ours the one that has Python, and of ringtrain only the operator
    container = {"name": "train", "image": image, "command": ["python3", "-c", ASKS]}
    template = {"spec": {"containers": [container]}}
    job = {
        "apiVersion": "ringtrain.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "stock"},
        "spec": {"worker": {"replicas": 2, "template": template}, "runPolicy": {"backoffLimit": 0}},
    }

    async def run() -> str:
        async with real_cluster(control_plane) as cluster:
            return await succeed(engine, cluster, job, tmp_path)

    log = asyncio.run(run())
    assert "[1] rank 1 of 2 None\n" in log


async def succeed(engine: Engine, cluster: Cluster, job: Json, folder: Path) -> str:
    """The job ends in Succeeded at its first attempt; what its launcher said, also in what is raised."""
    assert cluster.plane is not None
    namespace, name = await cluster.new_namespace(), job["metadata"]["name"]
    async with (
        operator_container(engine, cluster.plane, folder),
        Kubelet(cluster.api, ImageRuntime(engine), folder / "pods", namespace=namespace),
    ):
        await cluster.api.create(JOBS, namespace, job)
        done = await cluster.until(
            JOBS, namespace, name, lambda j: state(j) in ("Succeeded", "Failed"), TRAINED_WITHIN_S
        )
        log = b"".join([line async for line in cluster.api.pod_log(namespace, f"{name}-launcher")]).decode()
    print(log[-2000:])
    assert state(done) == "Succeeded", f"{done['status']}\n{log}"
    assert done["status"]["restarts"] == 0
    return log


def test_the_user_of_the_tests_is_the_charts() -> None:
    """The Deployment runs its container as the user that the tests take."""
    (deployment,) = [o for o in manifests() if o["kind"] == "Deployment"]
    context = deployment["spec"]["template"]["spec"]["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == USER
