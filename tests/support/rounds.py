"""Rounds of jobs that compete for the devices of a few nodes, on a real control plane with the real scheduler."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ringtrain_operator import contract
from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.resources import JOBS, NODES, PODS
from ringtrain_operator.placement.gangs import SCHEDULERS
from support.apiserver import ControlPlane
from support.cluster import Cluster, Json, real_cluster
from support.gangschedulers import CRDS, groups_of, standing_in
from support.installation import install_rights
from support.jobs import job, termination_message
from support.kubelet import Kubelet, ScriptedRuntime
from support.kueue import Kueue, kueue_crds
from support.operating import running_operator
from support.queued import QUEUE, open_queue
from support.rendering import render
from support.scenario import Clock, Scenario

ROOT = Path(__file__).parents[2]
GATES = "GenericWorkload=true,GangScheduling=true,TopologyAwareWorkloadScheduling=true"
# The operator may write the groups of all of them; each job says which it wants.
GANGS = {name: scheduler.scheduler_name for name, scheduler in SCHEDULERS.items()}
# Label of an arena's nodes.
NAMESPACE = "example.com/namespace"
WITHIN_S = 100.0
# In the place of a gang scheduler: the arena's jobs are in a queue of Kueue, with as much quota as it has devices.
KUEUE = "Kueue"


@contextmanager
def scheduling_plane(folder: Path, kueue: Kueue | None = None) -> Iterator[ControlPlane]:
    """A control plane with kube-scheduler, which knows gangs of its own, and the APIs of the other schedulers.

    `kueue`: prepared, to run beside them.
    """
    crds = (*yaml.safe_load_all((ROOT / "manifests" / "crd.yaml").read_text()), *CRDS)
    crds += kueue_crds(kueue.address, kueue.authority) if kueue else ()
    apis = "scheduling.k8s.io/v1alpha2"
    # Without this controller a group that is deleted stays.
    plane = ControlPlane.start(
        folder, crds, "podgroup-protection-controller", scheduler=True, gates=GATES, alpha_apis=apis
    )

    async def allow_gangs() -> str:
        async with ApiClient(plane.connection()) as api:
            values = (f"gangs.{name.lower()}=true" for name in GANGS)
            return await install_rights(api, render(*values, f"kueue.enabled={str(kueue is not None).lower()}"))

    try:
        plane.operator_token = asyncio.run(allow_gangs())
        if kueue is not None:
            asyncio.run(kueue.start(plane))
        yield plane
    finally:
        if kueue is not None:
            kueue.stop()
        plane.stop()


@dataclass(frozen=True)
class Round:
    """Times and costs of a round of jobs.

    `idle_device_s`: device seconds held by jobs whose gang was incomplete, until one was complete. `nobody_s`: the
    longest time in which none of the remaining jobs was complete. `groups`: PodGroups that existed after all jobs had
    ended.
    """

    first_whole_s: float
    nobody_s: float
    all_ended_s: float
    idle_device_s: float
    restarts: int
    disruptions: int
    groups: int


@dataclass
class Arena:
    """Two nodes with devices, an operator, and a namespace. `gang`: scheduling.gang of its jobs, or KUEUE."""

    scenario: Scenario
    device: str
    gang: str
    number: int = 0

    @property
    def cluster(self) -> Cluster:
        """Return the cluster of the scenario."""
        return self.scenario.cluster

    @property
    def namespace(self) -> str:
        """Of its own."""
        return self.scenario.namespace

    @property
    def runtime(self) -> ScriptedRuntime:
        """Return the container runtime of its nodes."""
        return self.scenario.runtime

    async def round(self, jobs: int, workers: int, devices: int, misplaced: int = 0) -> Round:
        """Submit `jobs` at once; end each as soon as it is whole; return when all have succeeded.

        `misplaced`: so many jobs stand in front of them that want no device, of a node that is not there.
        """
        self.number += 1
        names = [f"r{self.number}-{i}" for i in range(jobs)]
        in_front = [f"m{self.number}-{i}" for i in range(misplaced)]
        for name in in_front:
            await self.cluster.api.create(JOBS, self.namespace, self._misplaced(name))
        await asyncio.gather(*(self._submit(name, workers, devices) for name in names))
        began = last = somebody = time.monotonic()
        first, idle, nobody, left = 0.0, 0.0, 0.0, set(names)
        async with asyncio.timeout(WITHIN_S):
            while left:
                pods = await self.pods()
                whole = {name for name in left if self._whole(name, pods, workers)}
                now = time.monotonic()
                held = sum(bool(_job(p) in left and p["spec"].get("nodeName") and _worker(p)) for p in pods)
                if not first and not whole:
                    idle += held * devices * (now - last)
                last = now
                nobody = max(nobody, now - somebody)
                somebody = now if whole else somebody
                if whole and not first:
                    first = now - began
                for name in whole:
                    self._end(name, workers, pods)
                left -= whole
                await asyncio.sleep(0.1)
        ended = [await self._ended(name) for name in names]
        all_ended_s = time.monotonic() - began
        groups = await self.groups_left()
        for name in (*names, *in_front):
            await self.cluster.api.delete(JOBS, self.namespace, name)
        return Round(
            first_whole_s=first,
            nobody_s=nobody,
            all_ended_s=all_ended_s,
            idle_device_s=idle,
            restarts=sum(j["status"]["restarts"] for j in ended),
            disruptions=sum(j["status"]["disruptions"] for j in ended),
            groups=groups,
        )

    async def groups_left(self) -> int:
        """Wait about 5 s at most until no PodGroup of an ended job remains; return the number that remain."""
        found = 0
        for _ in range(50):
            kinds = [groups_of(name) for name in GANGS]
            found = sum([len(await self.cluster.api.select(kind, self.namespace)) for kind in kinds])
            if not found:
                break
            await asyncio.sleep(0.1)
        return found

    async def pods(self) -> list[Json]:
        """All pods that are not being deleted."""
        found = await self.cluster.api.select(PODS, self.namespace)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    async def _submit(self, name: str, workers: int, devices: int) -> None:
        await self.cluster.api.create(JOBS, self.namespace, self.job(name, workers, devices))

    def job(self, name: str, workers: int, devices: int, **spec: Any) -> Json:
        """A job whose pods run on the nodes of this arena."""
        here = {"nodeSelector": {NAMESPACE: self.namespace}}
        worker = job(workers=workers)["spec"]["worker"] | {"devices": {self.device: devices}}
        worker["template"]["spec"] |= here
        scheduling = {"queue": QUEUE} if self.gang == KUEUE else {"gang": self.gang}
        given = {"scheduling": scheduling, "launcher": {"template": {"spec": here}}, **spec}
        return job(name, worker=worker, slotsPerWorker=1, **given)

    def _misplaced(self, name: str) -> Json:
        made = self.job(name, 1, 0)
        made["spec"]["worker"] |= {"devices": {}}
        made["spec"]["worker"]["template"]["spec"]["nodeSelector"] = {NAMESPACE: "misspelled"}
        return made

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
async def open_arena(
    plane: ControlPlane, folder: Path, *, devices: int = 4, gang: str = "None"
) -> AsyncIterator[Arena]:
    """Two nodes of so many devices each, whose pods run by script once a scheduler has placed them.

    Several may be open at a time: each has nodes and devices of names of its own.
    """
    async with real_cluster(plane) as cluster, ApiClient(plane.connection(), user_agent="kubelet") as api:
        namespace, runtime, clock = await cluster.new_namespace(), ScriptedRuntime(), Clock()
        device, names = f"example.com/gpu-{namespace}", tuple(f"node-{i}-{namespace}" for i in range(2))
        options: Json = {"capacity": {device: devices}, "namespace": namespace, "schedules": False}
        async with AsyncExitStack() as stack:
            kubelet = await stack.enter_async_context(Kubelet(api, runtime, folder, nodes=names, **options))
            for name in names:
                await api.patch(NODES, None, name, {"metadata": {"labels": {NAMESPACE: namespace}}})
            if gang in ("Coscheduling", "Volcano"):
                await stack.enter_async_context(standing_in(api, namespace, gang))
            operating = running_operator(
                cluster.operator_connection, clock, namespaces=(namespace,), gangs=GANGS, kueue=gang == KUEUE
            )
            operator = await stack.enter_async_context(operating)
            scenario = Scenario(cluster, namespace, runtime, kubelet, operator, clock)
            if gang == KUEUE:
                await open_queue(scenario, len(names) * devices, device=device)
            yield Arena(scenario, device, gang)
