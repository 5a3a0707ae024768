"""Jobs in the queues of the real Kueue, on a real control plane; nodes run containers by script.

Where Kueue is not there these are skipped; test_queueing.py has the same decisions without it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.apiserver import ControlPlane, why_unavailable
from support.cluster import Cluster, real_cluster
from support.installation import install_rights
from support.jobs import condition, job, state
from support.kubelet import Kubelet, ScriptedRuntime
from support.kueue import (
    CLUSTER_QUEUES,
    FLAVORS,
    LOCAL_QUEUES,
    PRIORITIES,
    TOPOLOGIES,
    WORKLOADS,
    Kueue,
    kueue_crds,
    why_no_kueue,
)
from support.operating import running_operator
from support.rendering import render
from support.scenario import Clock, Scenario

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.resources import JOBS, NODES, PODS, Resource
from ringtrain_operator.plan.objects import LAUNCHER_ENDS_S

pytestmark = [pytest.mark.apiserver, pytest.mark.kueue]
ROOT = Path(__file__).parents[3]
Json = dict[str, Any]
GPU = "example.com/gpu"
QUEUED = {"scheduling": {"queue": "research"}}
PLENTY = {"cpu": "64", "memory": "64Gi"}


@dataclass(frozen=True)
class Setting:
    """A control plane with Kueue, and the operator's token there."""

    plane: ControlPlane
    token: str


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    """A control plane with Kueue, started once."""
    if reason := why_unavailable() or why_no_kueue():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("kueue")
    kueue = Kueue.prepare(folder / "kueue")
    ours = tuple(yaml.safe_load_all((ROOT / "manifests" / "crd.yaml").read_text()))
    plane = ControlPlane.start(folder, (*ours, *kueue_crds(kueue.address, kueue.authority)))
    try:

        async def install() -> str:
            async with ApiClient(plane.connection()) as api:
                return await install_rights(api, render("kueue.enabled=true"))

        token = asyncio.run(install())
        asyncio.run(kueue.start(plane))
        yield Setting(plane, token)
    finally:
        kueue.stop()
        plane.stop()


def _object(resource: Resource, name: str, **fields: Any) -> Json:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name},
        **fields,
    }


async def open_queue(s: Scenario, gpus: int, *, flavor: Json | None = None, **spec: Any) -> None:
    """LocalQueue `research` of the scenario's namespace, with a ClusterQueue and a ResourceFlavor of its own."""
    name, api = s.namespace, s.cluster.api
    await api.create(FLAVORS, None, _object(FLAVORS, name, spec=flavor or {}))
    quota = {**PLENTY, GPU: str(gpus)}
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
    group = {"coveredResources": list(quota), "flavors": [{"name": name, "resources": resources}]}
    wanted = {"namespaceSelector": {}, "resourceGroups": [group], **spec}
    await api.create(CLUSTER_QUEUES, None, _object(CLUSTER_QUEUES, name, spec=wanted))
    await api.create(LOCAL_QUEUES, name, _object(LOCAL_QUEUES, "research", spec={"clusterQueue": name}))


def gpu_job(name: str, workers: int, labels: dict[str, str] | None = None, **spec: Any) -> Json:
    """A job whose workers have a device each, in the queue."""
    described = job(name, workers=workers, **{**QUEUED, **spec})
    described["spec"]["worker"]["devices"] = {GPU: 1}
    described["metadata"]["labels"] = labels or {}
    return described


@asynccontextmanager
async def scenario(setting: Setting, folder: Path, *, kueue: bool = True) -> AsyncIterator[Scenario]:
    """A namespace, nodes, and an operator that may, or may not, write Workloads."""
    async with real_cluster(setting.plane) as cluster:
        cluster = replace(cluster, operator_connection=setting.plane.connection(setting.token))
        namespace, runtime, clock = await cluster.new_namespace(), ScriptedRuntime(), Clock()
        async with (
            Kubelet(cluster.api, runtime, folder, namespace=namespace, capacity={GPU: 8}) as kubelet,
            running_operator(cluster.operator_connection, clock, namespaces=(namespace,), kueue=kueue) as operator,
        ):
            yield Scenario(cluster, namespace, runtime, kubelet, operator, clock)


async def submit(s: Scenario, described: Json) -> Scenario:
    """Create the job; the scenario that is about it."""
    await s.cluster.api.create(JOBS, s.namespace, described)
    return replace(s, name=described["metadata"]["name"])


async def none_left(s: Scenario) -> None:
    """Return when the deleted job has left neither pod nor Workload."""
    await s.cluster.api.delete(JOBS, s.namespace, s.name)
    await s.until_pods(0)
    while [w for w in await s.cluster.api.select(WORKLOADS, s.namespace) if _is_of(w, s.name)]:
        await s.cluster.pause()


def _is_of(workload: Json, name: str) -> bool:
    return any(ref["name"].startswith(name) for ref in workload["metadata"].get("ownerReferences") or ())


async def test_jobs_run_as_quota_allows_and_in_their_order(setting: Setting, tmp_path: Path) -> None:
    """The second job waits, in Kueue's words, until the first has ended; its pods get the flavor's nodes."""
    async with scenario(setting, tmp_path) as s:
        taint = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
        await open_queue(s, 2, flavor={"nodeLabels": {"pool": "gpu"}, "tolerations": [taint]})
        first = await submit(s, gpu_job("first", 2))
        await first.until_running()
        second = await submit(s, gpu_job("second", 2))
        waits = await second.until_condition("Queued", "True", "insufficient unused quota")
        assert "LocalQueue research" in waits["message"]
        assert state(await second.job()) == "Queued"
        assert await second.pods() == []
        first.succeed()
        await first.until_state("Succeeded")
        await second.until_running()
        pod = await s.cluster.api.get(PODS, s.namespace, "second-worker-0")
        assert pod["spec"]["nodeSelector"] == {"pool": "gpu"}
        assert taint in pod["spec"]["tolerations"]
        assert "nodeSelector" not in (await second.job())["spec"]["worker"]["template"]["spec"]
        await none_left(first)
        await none_left(second)


async def test_a_preempted_job_goes_on_when_there_is_room(setting: Setting, tmp_path: Path) -> None:
    """The urgent job gets pods when the last pod of the other is gone; that one goes on, and nothing counts."""
    async with scenario(setting, tmp_path) as s:
        await open_queue(s, 2, preemption={"withinClusterQueue": "LowerPriority"})
        urgent_class = f"urgent-{s.namespace}"
        await s.cluster.api.create(PRIORITIES, None, _object(PRIORITIES, urgent_class, value=1000))
        slow = await submit(s, gpu_job("slow", 2))
        await slow.until_running()
        urgent = await submit(s, gpu_job("urgent", 2, {"kueue.x-k8s.io/priority-class": urgent_class}))
        told = await slow.until_condition("Queued", "True", "Preempted")
        assert told["reason"] == "Preempted"
        assert await urgent.pods() == []  # a launcher of the other is still there
        slow.skip(LAUNCHER_ENDS_S)
        await slow.until_pods(0)
        await urgent.until_running()
        assert await slow.pods() == []
        urgent.succeed()
        await urgent.until_state("Succeeded")
        await slow.until_running(attempt=2)
        status = (await slow.job())["status"]
        assert (status["restarts"], status["disruptions"]) == (0, 1)
        slow.succeed(attempt=2)
        await slow.until_state("Succeeded")
        (workload,) = await s.cluster.api.select(WORKLOADS, s.namespace, labels="ringtrain.dev/job-name=slow")
        await s.cluster.until(WORKLOADS, s.namespace, workload["metadata"]["name"], _is_finished)


def _is_finished(workload: Json | None) -> bool:
    return workload is not None and condition(workload, "Finished").get("status") == "True"


async def test_an_elastic_job_takes_what_there_is(setting: Setting, tmp_path: Path) -> None:
    """Four workers wanted, three devices free, two enough: three workers run."""
    async with scenario(setting, tmp_path) as s:
        await open_queue(s, 3)
        small = await submit(s, gpu_job("small", 4, elastic={"minReplicas": 2, "maxReplicas": 4}))
        await small.until_running(workers=3)
        assert (await small.job())["status"]["ledger"]["attemptWorkers"] == 3
        assert len(await small.pods()) == 4


async def test_a_suspended_job_leaves_no_workload(setting: Setting, tmp_path: Path) -> None:
    """Suspended, another gets its quota; resumed, it waits for its turn."""
    async with scenario(setting, tmp_path) as s:
        await open_queue(s, 2)
        first = await submit(s, gpu_job("first", 2))
        await first.until_running()
        second = await submit(s, gpu_job("second", 2))
        await second.until_state("Queued")
        await first.change({"runPolicy": {"suspend": True}})
        await first.until_state("Suspended")
        first.skip(LAUNCHER_ENDS_S)
        await second.until_running()
        assert not [w for w in await s.cluster.api.select(WORKLOADS, s.namespace) if _is_of(w, "first")]
        await first.change({"runPolicy": {"suspend": False}})
        await first.until_condition("Queued", "True", "insufficient unused quota")
        second.succeed()
        await first.until_running(attempt=2)


async def test_workers_get_places_along_the_topology(setting: Setting, tmp_path: Path) -> None:
    """All workers of a job that requires one rack are in one, and neighbours in rank are neighbours there."""
    async with scenario(setting, tmp_path) as s:
        rack, host, pool = "example.com/rack", "kubernetes.io/hostname", s.namespace
        await label_nodes(s.cluster, pool, {"a": 1, "b": 2}, rack)
        levels = {"levels": [{"nodeLabel": rack}, {"nodeLabel": host}]}
        await s.cluster.api.create(TOPOLOGIES, None, _object(TOPOLOGIES, pool, spec=levels))
        await open_queue(s, 8, flavor={"nodeLabels": {"pool": pool}, "topologyName": pool})
        described = gpu_job("near", 4, scheduling={"queue": "research", "topology": {"required": rack}})
        near = await submit(s, described)
        await near.until_condition("Queued", "False", "Admitted")
        await near.until_running(workers=4)
        names = [f"near-worker-{i}" for i in range(4)]
        pods = [await s.cluster.api.get(PODS, s.namespace, name) for name in names]
        hosts = [pod["spec"]["nodeSelector"][host] for pod in pods]
        assert sorted(set(hosts)) == [f"{pool}-b-0", f"{pool}-b-1"]
        assert hosts == sorted(hosts)
        for node in await s.cluster.api.select(NODES, labels=f"pool={pool}"):
            await s.cluster.api.delete(NODES, None, node["metadata"]["name"])


async def label_nodes(cluster: Cluster, pool: str, racks: dict[str, int], key: str) -> None:
    """Ready nodes of `pool` with two devices each, so many in each rack."""
    for rack, count in racks.items():
        for number in range(count):
            name = f"{pool}-{rack}-{number}"
            labels = {"pool": pool, key: rack, "kubernetes.io/hostname": name}
            await cluster.api.create(
                NODES, None, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
            )
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
            amounts = {**PLENTY, "pods": "110", GPU: "2"}
            status = {"conditions": [ready], "capacity": amounts, "allocatable": amounts}
            await cluster.api.patch(NODES, None, name, {"status": status}, subresource="status")
            # No controller of nodes runs that would take the taint of a new node away.
            await cluster.api.patch(NODES, None, name, {"spec": {"taints": None}})


async def test_without_rights_on_workloads_pods_are_queued_as_a_group(setting: Setting, tmp_path: Path) -> None:
    """Pods wait at Kueue's gate until the whole gang is admitted; the job ends, and leaves nothing."""
    async with scenario(setting, tmp_path, kueue=False) as s:
        await open_queue(s, 2)
        first = await submit(s, gpu_job("first", 2))
        await first.until_running()
        second = await submit(s, gpu_job("second", 2))
        waiting = await second.until_condition("Running", "False", "gate")
        assert condition(await second.job(), "Queued") == {}, waiting
        first.succeed()
        await first.until_state("Succeeded")
        await none_left(first)
        await second.until_running()
        second.succeed()
        await second.until_state("Succeeded")
        await none_left(second)
