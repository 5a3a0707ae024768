"""Jobs in images that have nothing of ringtrain: the operator brings the agent.

Operator, launcher and agents are real; a pod's containers are processes in the roots of their images, under
a user that no image knows, with a root that nobody can write to.
"""

import asyncio
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from integration.operator.standalone import (
    BUSYBOX,
    add_with_libraries,
    build_standalone,
    shell_only,
    why_not_built,
)
from support import jobs
from support.cluster import Cluster, OpenCluster, fake_cluster, namespace_of
from support.commands import completed
from support.deadlines import patient
from support.jobs import state
from support.kubelet import Kubelet
from support.kubelet.roots import USER, Image, RootRuntime, why_no_roots
from support.operating import running_operator

from ringtrain_convert.mpijob import convert_mpijob
from ringtrain_operator.build import AgentSource, BuildSettings
from ringtrain_operator.build.settings import AgentVolume
from ringtrain_operator.cluster.api.resources import JOBS, PODS

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


@asynccontextmanager
async def running(
    cluster: OpenCluster, manifest: Json, images: dict[str, Image], folder: Path, volume: AgentVolume
) -> AsyncIterator[tuple[Cluster, str]]:
    """The cluster and the namespace in which the job was created."""
    async with (
        namespace_of(cluster()) as (c, ns),
        Kubelet(c.api, RootRuntime(images), folder, namespace=ns),
        running_operator(
            c.operator_connection, namespaces=(ns,), objects=BuildSettings(agent=AgentSource(AGENT, volume))
        ),
    ):
        await c.api.create(JOBS, ns, manifest)
        yield c, ns


async def run(
    cluster: OpenCluster, manifest: Json, images: dict[str, Image], folder: Path, volume: AgentVolume
) -> tuple[Json, str]:
    """The job after its end, and its launcher's output."""
    name = manifest["metadata"]["name"]
    async with running(cluster, manifest, images, folder, volume) as (c, ns):
        done = await c.until(JOBS, ns, name, lambda j: state(j) in ("Succeeded", "Failed"), ENDED_WITHIN_S)
        log = b"".join([line async for line in c.api.pod_log(ns, f"{name}-launcher")]).decode()
    return done, log


@pytest.mark.parametrize("volume", ["InitContainer", "ImageVolume"])
async def test_a_program_runs_in_an_image_without_python(
    one_cluster: OpenCluster, agent: Image, shell: Image, tmp_path: Path, volume: AgentVolume
) -> None:
    """Its ranks have the image's environment and their place in the world, and nothing of the agent's Python."""
    script = "echo rank $RANK of $WORLD_SIZE, user $(id -u); env | sort; touch /new || echo read-only; echo >/tmp/new"
    manifest = shell_job("shell", script)
    done, log = await run(one_cluster, manifest, {AGENT: agent, "shell:1": shell}, tmp_path, volume)
    assert state(done) == "Succeeded", f"{done['status']}\n{log}"
    for rank in range(2):
        assert f"[{rank}] rank {rank} of 2, user {USER}\n" in log
        for name, value in {"FROM_IMAGE": "yes", **OF_THE_IMAGE}.items():
            assert f"[{rank}] {name}={value}\n" in log
        assert f"[{rank}] read-only\n" in log
    assert "ASIDE" not in log
    assert "LC_CTYPE" not in log
    assert "HOME=" not in log.replace("PYTHONHOME=", "")


def shell_job(name: str, script: str, **spec: Any) -> Json:
    """A job whose ranks run `script` in the image with a shell, with a root that they cannot write to."""
    manifest = jobs.job(name, **{"runPolicy": {"backoffLimit": 0}, **spec})
    main = manifest["spec"]["worker"]["template"]["spec"]["containers"][0]
    main.update(image="shell:1", command=["sh", "-c", script], securityContext={"readOnlyRootFilesystem": True})
    return manifest


async def test_logs_are_read_without_the_image(agent: Image, shell: Image, tmp_path: Path) -> None:
    """The pod that reads the store of a job whose launcher is gone has the agent's image, and is restricted."""
    manifest = shell_job("shell", "echo hello of $RANK")
    manifest["spec"]["logs"] = {"persistentVolumeClaim": {"claimName": "runs"}}
    images = {AGENT: agent, "shell:1": shell}
    async with running(fake_cluster, manifest, images, tmp_path, "InitContainer") as (c, ns):
        await c.until(JOBS, ns, "shell", lambda j: state(j) == "Succeeded", ENDED_WITHIN_S)
        await c.api.delete(PODS, ns, "shell-launcher")
        await c.until_gone(PODS, ns, "shell-launcher")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ringtrain_client.cli", "logs", "shell", "--namespace", ns, "--rank=1"),
            env={**os.environ, "KUBECONFIG": str(c.kubeconfig(tmp_path))},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
    assert (process.returncode, out) == (0, b"hello of 1\n"), err.decode()


@pytest.mark.parametrize(
    ("version", "agent_of_job", "own"),
    [
        pytest.param("0.1.7", None, True, id="its-version-fits"),
        pytest.param("0.2.0", None, False, id="its-version-does-not"),
        pytest.param("0.1.0", "Inject", False, id="the-job-says-inject"),
    ],
)
async def test_an_image_may_say_that_it_has_ringtrain(
    agent: Image, tmp_path: Path, version: str, agent_of_job: str | None, own: bool
) -> None:
    """Its own `ringtrain` then runs in the place of the one that was brought."""
    root = shell_only(tmp_path / "root")
    program = root / "bin" / "ringtrain"
    program.write_text('#!/bin/sh\necho "the own one: $1"\nexit 3\n')
    program.chmod(0o755)
    images = {AGENT: agent, "shell:1": Image(root, {"RINGTRAIN_IMAGE_VERSION": version})}
    spec = {"agent": agent_of_job} if agent_of_job else {}
    done, log = await run(fake_cluster, shell_job("shell", "true", **spec), images, tmp_path, "InitContainer")
    assert state(done) == ("Failed" if own else "Succeeded")
    assert ("the own one: launcher" in log) is own
    assert ("the image has ringtrain 0.2.0" in log) is (version == "0.2.0")


# As kubeflow's example of an MPIJob has it.
KUBEFLOWS_PI: Json = {
    "apiVersion": "kubeflow.org/v2beta1",
    "kind": "MPIJob",
    "metadata": {"name": "pi"},
    "spec": {
        "slotsPerWorker": 1,
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0},
        "sshAuthMountPath": "/home/mpiuser/.ssh",
        "mpiReplicaSpecs": {
            "Launcher": {
                "replicas": 1,
                "template": {
                    "spec": {
                        "containers": [
                            {
                                "name": "mpi-launcher",
                                "image": "mpioperator/mpi-pi:openmpi",
                                "securityContext": {"runAsUser": 1000},
                                "command": ["mpirun"],
                                "args": ["-n", "2", "/home/mpiuser/pi"],
                            }
                        ]
                    }
                },
            },
            "Worker": {
                "replicas": 2,
                "template": {
                    "spec": {
                        "containers": [
                            {
                                "name": "mpi-worker",
                                "image": "mpioperator/mpi-pi:openmpi",
                                "securityContext": {"runAsUser": 1000},
                                "command": ["/usr/sbin/sshd"],
                                "args": ["-De", "-f", "/home/mpiuser/.sshd_config"],
                            }
                        ]
                    }
                },
            },
        },
    },
}
PI = Path(__file__).parents[3] / "examples" / "mpi" / "pi.c"
LIBRARIES = Path(f"/usr/lib/{os.uname().machine}-linux-gnu")


def with_open_mpi(root: Path) -> Path:
    """A root with Debian's Open MPI, a shell and the program of examples/mpi/pi.c, and no Python."""
    if not (LIBRARIES / "openmpi").exists() or not shutil.which("mpicc.openmpi"):
        pytest.skip("needs Debian's Open MPI (openmpi-bin, libopenmpi-dev)")
    shell_only(root)
    program = root / "home" / "mpiuser" / "pi"
    program.parent.mkdir(parents=True)
    subprocess.run(["mpicc.openmpi", "-O2", "-o", str(program), str(PI), "-lm"], check=True)
    programs = [Path("/usr/bin") / name for name in ("mpirun.openmpi", "orterun", "orted", "mpirun")]
    add_with_libraries(root, [*programs, program, *LIBRARIES.glob("openmpi/**/*.so"), *LIBRARIES.glob("pmix*/**/*.so")])
    for folder in ("/usr/share/openmpi", "/etc/openmpi"):
        shutil.copytree(folder, root / folder.lstrip("/"), dirs_exist_ok=True)
    assert not list(root.rglob("*python*"))
    return root


async def test_an_mpi_program_runs_in_an_image_without_python(agent: Image, tmp_path: Path) -> None:
    """kubeflow's example of an MPIJob, converted and otherwise unchanged; its image has MPI and a shell."""
    image = Image(with_open_mpi(tmp_path / "root"), {"OMPI_MCA_btl": "self,tcp,vader"})
    converted = convert_mpijob(KUBEFLOWS_PI).manifest
    images = {AGENT: agent, "mpioperator/mpi-pi:openmpi": image}
    done, log = await run(fake_cluster, converted, images, tmp_path, "InitContainer")
    assert state(done) == "Succeeded", f"{done['status']}\n{log}"
    assert "pi is about 3.1" in log


# What a script for torchrun does: the environment is all that it is given.
DDP = """
import importlib.util
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
model(torch.full((1, 2), 1.0 + dist.get_rank())).sum().backward()
found = model.module.weight.grad.tolist()
print("gradient", found, "of", dist.get_world_size(), importlib.util.find_spec("ringtrain"), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def with_pytorch(root: Path) -> Image:
    """An image with this machine's Python and PyTorch, and without ringtrain."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        pytest.skip("needs torch (requirements-frameworks.txt)")
    (shell_only(root) / "etc").mkdir()
    (root / "etc" / "hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
    parts = {path: Path(path) for path in ("/lib", "/lib64", "/usr/lib", sys.base_prefix) if Path(path).exists()}
    python = f"{sys.base_prefix}/bin"
    # Links to editable distributions, ringtrain's among them, are not followed from there.
    packages = Path(torch.origin).parents[1]
    env = {"PATH": f"{python}:/bin", "PYTHONPATH": "/packages", "PYTHONDONTWRITEBYTECODE": "1"}
    return Image(root, env, {**parts, "/packages": packages})


async def test_a_script_for_torchrun_runs_in_a_stock_image(agent: Image, tmp_path: Path) -> None:
    """PyTorch's DDP over gloo, two workers: the script is as it was, and its image has no ringtrain."""
    manifest = shell_job("stock", "")
    main = manifest["spec"]["worker"]["template"]["spec"]["containers"][0]
    main.update(image="torch:1", command=["python3", "-c", DDP])
    images = {AGENT: agent, "torch:1": with_pytorch(tmp_path / "root")}
    done, log = await run(fake_cluster, manifest, images, tmp_path, "InitContainer")
    assert state(done) == "Succeeded", f"{done['status']}\n{log}"
    for rank in range(2):
        assert f"[{rank}] gradient [[1.5, 1.5]] of 2 None\n" in log


def test_what_an_image_preloads_is_for_its_own_programs(agent: Image) -> None:
    """The agent's Python does not load it, and has the image's variables again when it starts something."""
    program = agent.root / "python" / "bin" / "python3"
    image = {"LD_PRELOAD": "/image/own.so", "LD_LIBRARY_PATH": "/image", "PYTHONHOME": "/image", "LC_CTYPE": "C"}
    code = "import os, ringtrain; print(sorted(os.environ.items()))"
    for env in (image, {}):
        done = completed([program, "-c", code], env=env, check=True, timeout=patient(60))
        assert (done.stdout.strip(), done.stderr) == (str(sorted(env.items())), "")


def test_the_agent_has_what_a_launcher_ships_logs_with(agent: Image) -> None:
    """`spec.logs.uri` needs nothing of the job's image, nor numpy; every module finds what it imports."""
    program = agent.root / "python" / "bin" / "python3"
    code = (
        "import importlib, pkgutil, sys, obstore.store, ringtrain, ringtrain.shared, ringtrain_job, ringtrain_mpi\n"
        "for package in (ringtrain.shared, ringtrain_job, ringtrain_mpi):\n"
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        try:\n"
        "            found.name.endswith(('__main__', '_node_name')) or importlib.import_module(found.name)\n"
        "        except ModuleNotFoundError as error:\n"
        "            assert error.name == 'numpy' or error.name.startswith('ringtrain.'), error  # for training code\n"
        "print('numpy' in sys.modules, len(sys.modules) > 300)"
    )
    done = completed([program, "-c", code], env={}, timeout=patient(60))
    assert (done.stdout.strip(), done.stderr) == ("False True", "")


def test_the_agent_is_small(agent: Image) -> None:
    """Bytecode or sources, and not both; most of it in one file, since each file takes time to copy."""
    files = [path for path in agent.root.rglob("*") if path.is_file()]
    assert not [path for path in files if path.suffix in (".py", ".pyi", ".h") or path.name == "pip"]
    assert len(files) < 500
    assert sum(path.stat().st_size for path in files) < 75e6


def test_the_copy_of_the_agent_is_the_agent(agent: Image, tmp_path: Path) -> None:
    """Made by the static program alone, with the same names, bytes and modes, also over what another copy left."""
    for _ in range(2):
        done = completed([agent.root / "bin" / "ringtrain", "copy", tmp_path], env={}, timeout=patient(60))
        assert (done.returncode, done.stderr) == (0, "")
    for path in (*agent.root.glob("bin/**/*"), *agent.root.glob("python/**/*")):  # pods leave folders beside these
        copied = tmp_path / path.relative_to(agent.root)
        assert copied.stat().st_mode == path.stat().st_mode
        assert path.is_dir() or copied.read_bytes() == path.read_bytes()
    missing = tmp_path / "missing" / "folder"
    done = completed([agent.root / "bin" / "ringtrain", "copy", missing], env={}, timeout=patient(60))
    assert (done.returncode, "No such file or directory" in done.stderr) == (127, True)


def test_the_agent_has_the_plugins_of_launcher_and_command(agent: Image) -> None:
    """Those of this environment whose entry points the launcher, the agent or the command load, and no others."""
    program = agent.root / "python" / "bin" / "python3"
    code = (
        "import importlib.metadata as m, sys; points = [p for g in sys.argv[1:] for p in m.entry_points(group=g)]; "
        "[p.load() for p in points]; print(sorted((p.group, p.name) for p in points)); "
        "print(sorted(d.name for d in m.distributions() if d.name.startswith('ringtrain-')))"
    )
    groups = ("ringtrain.launcher.observers", "ringtrain.launcher.backends", "ringtrain.commands")
    done = completed([program, "-c", code, *groups], env={}, timeout=patient(60))
    here = [point for group in groups for point in metadata.entry_points(group=group)]
    names = {point.dist.name for point in here if point.dist is not None} - {"ringtrain"}
    assert names
    assert done.stdout.splitlines() == [
        str(sorted((point.group, point.name) for point in here)),
        str(sorted(names)),
    ], done.stderr
