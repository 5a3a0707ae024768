"""Jobs in the queues of the real Kueue: a control plane with its manager, queues with quota, jobs."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.resources import JOBS, ApiResource
from support.apiserver import ControlPlane
from support.cluster import real_cluster
from support.installation import install_rights
from support.jobs import job
from support.kubelet import Kubelet, ScriptedRuntime
from support.kubelet.runtimes import Runtime
from support.kueue import CLUSTER_QUEUES, FLAVORS, LOCAL_QUEUES, WORKLOADS, Kueue, kueue_crds
from support.operating import running_operator
from support.rendering import render
from support.scenario import Clock, Scenario

ROOT = Path(__file__).parents[2]
Json = dict[str, Any]
GPU = "example.com/gpu"
QUEUE = "research"
PLENTY = {"cpu": "64", "memory": "64Gi"}


@dataclass(frozen=True)
class Setting:
    """A control plane with Kueue, and the operator's token there."""

    plane: ControlPlane
    token: str


@contextmanager
def open_setting(folder: Path) -> Iterator[Setting]:
    """A control plane with Kueue."""
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


def described(resource: ApiResource, name: str, **fields: Any) -> Json:
    """An object of this kind."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name},
        **fields,
    }


async def open_queue(s: Scenario, gpus: int, *, flavor: Json | None = None, device: str = GPU, **spec: Any) -> None:
    """LocalQueue `research` of the scenario's namespace, with a ClusterQueue and a ResourceFlavor of its own."""
    await s.cluster.api.create(FLAVORS, None, described(FLAVORS, s.namespace, spec=flavor or {}))
    await open_cluster_queue(s, s.namespace, gpus, QUEUE, device=device, **spec)


async def open_cluster_queue(
    s: Scenario, name: str, gpus: int, queue: str = "", *, device: str = GPU, **spec: Any
) -> None:
    """ClusterQueue `name` with so many devices of the scenario's flavor, and LocalQueue `queue`."""
    api, quota = s.cluster.api, {**PLENTY, device: str(gpus)}
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
    group = {"coveredResources": list(quota), "flavors": [{"name": s.namespace, "resources": resources}]}
    wanted = {"namespaceSelector": {}, "resourceGroups": [group], **spec}
    await api.create(CLUSTER_QUEUES, None, described(CLUSTER_QUEUES, name, spec=wanted))
    if queue:
        local = described(LOCAL_QUEUES, queue, spec={"clusterQueue": name})
        await api.create(LOCAL_QUEUES, s.namespace, local)


def gpu_job(name: str, workers: int, labels: dict[str, str] | None = None, queue: str = QUEUE, **spec: Any) -> Json:
    """A job whose workers have a device each, in the queue."""
    made = job(name, workers=workers, **{"scheduling": {"queue": queue}, **spec})
    made["spec"]["worker"]["devices"] = {GPU: 1}
    made["metadata"]["labels"] = labels or {}
    return made


@asynccontextmanager
async def scenario(
    setting: Setting, folder: Path, *, kueue: bool = True, runtime: Runtime | None = None
) -> AsyncIterator[Scenario]:
    """A namespace, nodes, and an operator that may, or may not, write Workloads. `runtime`: None: by script."""
    async with real_cluster(setting.plane) as cluster:
        cluster = replace(cluster, operator_connection=setting.plane.connection(setting.token))
        namespace, scripted, clock = await cluster.new_namespace(), ScriptedRuntime(), Clock()
        async with (
            Kubelet(cluster.api, runtime or scripted, folder, namespace=namespace, capacity={GPU: 8}) as kubelet,
            running_operator(cluster.operator_connection, clock, namespaces=(namespace,), kueue=kueue) as operator,
        ):
            yield Scenario(cluster, namespace, scripted, kubelet, operator, clock)


async def submit(s: Scenario, wanted: Json) -> Scenario:
    """Create the job; the scenario that is about it."""
    await s.cluster.api.create(JOBS, s.namespace, wanted)
    return replace(s, name=wanted["metadata"]["name"])


async def none_left(s: Scenario) -> None:
    """Return when the deleted job has left neither pod nor Workload."""
    await s.cluster.api.delete(JOBS, s.namespace, s.name)
    await s.until_pods(0)
    while await workloads_of(s):
        await s.cluster.pause()


async def workloads_of(s: Scenario) -> list[Json]:
    """Workloads of the job, and of its pods."""
    return [w for w in await s.cluster.api.select(WORKLOADS, s.namespace) if _is_of(w, s.name)]


def _is_of(workload: Json, name: str) -> bool:
    return any(ref["name"].startswith(name) for ref in workload["metadata"].get("ownerReferences") or ())
