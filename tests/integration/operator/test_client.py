"""ringtrain_sdk against an API server: what is created, what the answers and errors are."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.cluster import Cluster, OpenCluster, fake_cluster, namespace_of
from support.kubelet import ProcessRuntime
from support.objects import CONFIG_MAPS
from support.scenario import open_scenario, operated

from ringtrain_client.jobs.script import MAX_BYTES
from ringtrain_sdk import (
    AlreadyExists,
    ApiError,
    AsyncClient,
    ClusterBackend,
    Invalid,
    JobEnded,
    JobFailed,
    NotFound,
    ScriptUnusable,
    Timeout,
)

# Generous: the machine may be busy.
SOON_S = 60.0


@asynccontextmanager
async def client_of(cluster: Cluster, namespace: str, folder: Path) -> AsyncIterator[AsyncClient]:
    """A client with a kubeconfig of the cluster's admin."""
    backend = ClusterBackend(namespace, kubeconfig=str(cluster.kubeconfig(folder)))
    async with AsyncClient(backend) as client:
        yield client


def greets(word: str) -> None:
    import ringtrain as rt

    rt.init()
    rt.report(step=1, total_steps=1, loss=0.5)
    print(word, rt.rank(), "of", rt.size())
    rt.shutdown()


def fails() -> None:
    import os
    import sys

    print("no such data set", flush=True)
    sys.exit(7 * (os.environ["RANK"] == "1"))


async def test_functions_train_in_pods(one_cluster: OpenCluster, tmp_path: Path, runtime: ProcessRuntime) -> None:
    """With the real runtime in their containers: one that ends well, and one that fails in rank 1."""
    async with operated(one_cluster(), runtime, tmp_path) as (c, ns), client_of(c, ns, tmp_path) as client:
        run = await client.train(greets, args=["hello"], image="worker", workers=2)
        bad = await client.train(fails, image="worker", workers=2, spec={"runPolicy": {"backoffLimit": 0}})
        status = await run.wait(SOON_S)
        assert (status.state, status.workers) == ("Succeeded", "-")
        assert [line async for line in run.logs(rank=1)] == ["hello 1 of 2"]
        metrics = await run.metrics()
        assert metrics is not None
        assert (metrics.step, metrics.loss) == (1, 0.5)
        with pytest.raises(JobFailed, match="rank 1 exited with 7") as failed:
            await bad.wait(SOON_S)
        assert failed.value.failure is not None
        assert failed.value.failure.rank == 1
        assert "no such data set" in str(failed.value)
        with pytest.raises(JobEnded, match="has ended"):
            await run.suspend()


async def test_a_run_from_its_start_to_its_deletion(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """Scaled, suspended, resumed, found by its name, deleted while somebody waits; nodes are played."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    async with (
        open_scenario(open_cluster, tmp_path / "nodes") as s,
        client_of(s.cluster, s.namespace, tmp_path) as c,
    ):
        run = await c.train(tmp_path / "train.py", image="w:1", workers=2, args=["-v", "$(A)"], name="digits")
        stored = await run.job()
        [container] = stored["spec"]["worker"]["template"]["spec"]["containers"]
        assert container["command"] == ["python", "/etc/ringtrain/script/train.py", "-v", "$$(A)"]
        held = await s.cluster.api.get(CONFIG_MAPS, s.namespace, "digits-script")
        assert held["data"] == {"train.py": "print('hello')\n"}
        [owner] = held["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == (stored["kind"], stored["metadata"]["uid"])
        await s.until_running()
        with pytest.raises(Timeout, match=r"digits is Pending and not at its end after 0.2 s"):
            await run.wait(0.2)
        with pytest.raises(AlreadyExists, match="digits exists already"):
            await c.train(tmp_path / "train.py", image="w:1", name="digits")
        await run.suspend()
        await run.wait(SOON_S, until="Suspended")
        assert str(await run.why()).startswith("digits is Suspended")
        await run.scale(3)
        await (await c.get("digits")).resume()
        await s.until_running(attempt=2, workers=3)
        assert [found.name for found in await c.list()] == ["digits"]
        waiting = asyncio.ensure_future(run.wait(SOON_S))
        await run.delete()
        with pytest.raises(NotFound, match=r"was deleted|not found"):
            await waiting
        with pytest.raises(NotFound):
            await run.status()


async def test_what_is_wrong_is_told_by_field(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """Before anything is created, and by the API server for what only it knows."""
    async with namespace_of(open_cluster()) as (cluster, ns), client_of(cluster, ns, tmp_path) as client:
        with pytest.raises(Invalid) as refused:
            await client.train(greets, args=["x"], image="w:1", workers=0, devices={"gpu": 1})
        assert [problem.path for problem in refused.value.problems] == ["spec.worker.replicas"]
        with pytest.raises(Invalid, match="image: is missing; on a cluster"):
            await client.train(greets, args=["x"])
        run = await client.train("/opt/train.py", in_image=True, image="w:1", name="digits")
        unnamed = {**await run.job(), "metadata": {"generateName": "some-"}}
        names = {(await client.submit(unnamed)).name for _ in range(2)}
        assert len(names) == 2
        assert all(name.startswith("some-") for name in names)
        if open_cluster is not fake_cluster:  # which holds no rules
            with pytest.raises(Invalid, match=r"spec.worker.replicas.*4096"):
                await run.scale(5000)
        with pytest.raises(NotFound, match="is the operator installed, and does the namespace nowhere exist"):
            await client.submit({**await run.job(), "metadata": {"name": "x", "namespace": "nowhere"}})


@pytest.mark.apiserver
async def test_a_script_has_as_much_as_a_config_map(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """The API server takes the largest that is let through; a job whose script is refused does not stay."""
    file = tmp_path / "train.py"
    async with namespace_of(open_cluster()) as (cluster, ns), client_of(cluster, ns, tmp_path) as client:
        file.write_text("#" * MAX_BYTES)
        await client.train(file, image="w:1", name="largest")
        file.write_text("#" * (MAX_BYTES + 1))
        with pytest.raises(ScriptUnusable, match=r"has 1048577 bytes"):
            await client.train(file, image="w:1", name="larger")
        taken = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "taken-script"}}
        await cluster.api.create(CONFIG_MAPS, ns, taken)
        file.write_text("pass")
        with pytest.raises(ApiError, match="taken-script"):
            await client.train(file, image="w:1", name="taken")
        assert [run.name for run in await client.list()] == ["largest"]
