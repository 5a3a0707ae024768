"""Rounds of jobs that compete for the devices of a few nodes, on a real control plane with the real scheduler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from ringtrain_operator import contract
from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.resources import JOBS, PODS
from support.apiserver import ControlPlane
from support.cluster import Cluster, Json, real_cluster
from support.jobs import job, termination_message
from support.kubelet import Kubelet, ScriptedRuntime
from support.operating import running_operator

ROOT = Path(__file__).parents[2]
DEVICE = "nvidia.com/gpu"
GATES = "GenericWorkload=true,GangScheduling=true"
WITHIN_S = 100.0


@contextmanager
def scheduling_plane(folder: Path) -> Iterator[ControlPlane]:
    """A control plane with kube-scheduler, which knows gangs of its own."""
    crds = tuple(yaml.safe_load_all((ROOT / "manifests" / "crd.yaml").read_text()))
    apis = "scheduling.k8s.io/v1alpha2"
    plane = ControlPlane.start(folder, crds, scheduler=True, gates=GATES, alpha_apis=apis)
    try:
        yield plane
    finally:
        plane.stop()


@dataclass(frozen=True)
class Round:
    """What a round of jobs took. `idle_device_s`: devices held by jobs that were not whole, until one was."""

    first_whole_s: float
    all_ended_s: float
    idle_device_s: float
    restarts: int
    disruptions: int


@dataclass
class Arena:
    """Two nodes with devices, an operator, and a namespace."""

    cluster: Cluster
    namespace: str
    runtime: ScriptedRuntime
    number: int = 0

    async def round(self, jobs: int, workers: int, devices: int) -> Round:
        """Submit `jobs` at once; end each as soon as it is whole; return when all have succeeded."""
        self.number += 1
        names = [f"r{self.number}-{i}" for i in range(jobs)]
        await asyncio.gather(*(self._submit(name, workers, devices) for name in names))
        began = last = time.monotonic()
        first, idle, left = 0.0, 0.0, set(names)
        async with asyncio.timeout(WITHIN_S):
            while left:
                pods = await self.pods()
                whole = {name for name in left if self._whole(name, pods, workers)}
                now = time.monotonic()
                held = sum(bool(_job(p) in left and p["spec"].get("nodeName") and _worker(p)) for p in pods)
                if not first and not whole:
                    idle += held * devices * (now - last)
                last = now
                if whole and not first:
                    first = now - began
                for name in whole:
                    self._end(name, workers, pods)
                left -= whole
                await asyncio.sleep(0.1)
        ended = [await self._ended(name) for name in names]
        for name in names:
            await self.cluster.api.delete(JOBS, self.namespace, name)
        return Round(
            first_whole_s=first,
            all_ended_s=time.monotonic() - began,
            idle_device_s=idle,
            restarts=sum(j["status"]["restarts"] for j in ended),
            disruptions=sum(j["status"]["disruptions"] for j in ended),
        )

    async def pods(self) -> list[Json]:
        """All pods that are not being deleted."""
        found = await self.cluster.api.select(PODS, self.namespace)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    async def _submit(self, name: str, workers: int, devices: int) -> None:
        worker = job(workers=workers)["spec"]["worker"] | {"devices": {DEVICE: devices}}
        body = job(name, worker=worker, slotsPerWorker=1)
        await self.cluster.api.create(JOBS, self.namespace, body)

    def _whole(self, name: str, pods: list[Json], workers: int) -> bool:
        mine = [p for p in pods if _job(p) == name]
        runs = [p for p in mine if (p.get("status") or {}).get("phase") == "Running"]
        return len(runs) == len(mine) == workers + 1 and all(
            p["metadata"]["name"] in self.runtime.containers for p in runs
        )

    def _end(self, name: str, workers: int, pods: list[Json]) -> None:
        attempt = next(int(p["metadata"]["labels"][contract.LABEL_ATTEMPT]) for p in pods if _job(p) == name)
        for index in range(workers):
            self.runtime.finish(f"{name}-worker-{index}")
        self.runtime.finish(f"{name}-launcher", message=termination_message(attempt=attempt, world=workers))

    async def _ended(self, name: str) -> Json:
        def done(found: Json | None) -> bool:
            return ((found or {}).get("status") or {}).get("state") in ("Succeeded", "Failed")

        return await self.cluster.until(JOBS, self.namespace, name, done)


def _job(pod: Json) -> str:
    return str(pod["metadata"]["labels"].get(contract.LABEL_JOB))


def _worker(pod: Json) -> bool:
    return bool(pod["metadata"]["labels"].get(contract.LABEL_ROLE) == contract.ROLE_WORKER)


@asynccontextmanager
async def open_arena(plane: ControlPlane, folder: Path, nodes: int = 2, devices: int = 4) -> AsyncIterator[Arena]:
    """Nodes of so many devices each, whose pods run by script once the scheduler has placed them."""
    async with real_cluster(plane) as cluster, ApiClient(plane.connection(), user_agent="kubelet") as api:
        namespace, runtime = await cluster.new_namespace(), ScriptedRuntime()
        names = tuple(f"node-{i}" for i in range(nodes))
        options: Json = {"capacity": {DEVICE: devices}, "namespace": namespace, "schedules": False}
        async with (
            Kubelet(api, runtime, folder, nodes=names, **options),
            running_operator(cluster.operator_connection, namespaces=()),
        ):
            yield Arena(cluster, namespace, runtime)
