"""Nodes, the scheduler's part, and the pods on them."""

import asyncio
import itertools
import logging
import re
from collections.abc import Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.errors import ApiError, Conflict, NotFound
from ringtrain_operator.cluster.api.resources import NODES, PODS
from support.kubelet.execs import Beside
from support.kubelet.network import AddressBlock
from support.kubelet.pod import Clock, PodLife, new_condition, now_text, utc_now
from support.kubelet.runtimes import Runtime
from support.kubelet.serving import NodeServer
from support.objects import subresource

log = logging.getLogger(__name__)
Json = dict[str, Any]
_DNS_NAME = re.compile(r"^(?P<pod>[a-z0-9-]+)\.[a-z0-9-]+:(?P<port>\d+)$")


class Kubelet:
    """`async with Kubelet(api, runtime, folder)`: schedules and runs every pod of the cluster on `nodes`.

    `capacity` is what each node has of extended resources; a pod that asks for more stays unschedulable.
    `namespace`: only its pods (None: all). `log_keeps`: how many bytes of a container's output it serves, as a
    kubelet's containerLogMaxSize. `schedules`: whether it finds nodes for pods; without, a scheduler does.
    `clock`: by which it says when a container ended. `pull_s`: how long each pod takes to pull its image.
    """

    def __init__(
        self,
        api: ApiClient,
        runtime: Runtime,
        folder: Path,
        *,
        nodes: tuple[str, ...] = ("node-a", "node-b"),
        namespace: str | None = None,
        capacity: dict[str, int] | None = None,
        log_keeps: int = 10 << 20,
        schedules: bool = True,
        clock: Clock = utc_now,
        pull_s: float | None = None,
    ) -> None:
        self._clock = clock
        self._pull_s = pull_s
        self._schedules = schedules
        self._api = api
        self._runtime = runtime
        self._folder = folder
        self._nodes = dict.fromkeys(nodes, True)
        self._turn = itertools.cycle(nodes)
        self._namespace = namespace
        self._capacity = capacity or {}
        self._lives: dict[str, tuple[PodLife, asyncio.Task[None]]] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._addresses: dict[tuple[str, str], str] = {}
        self._block = AddressBlock()
        self._node_address = self._block.next()
        self._server = NodeServer(self._log_of, self._start_beside, folder, log_keeps, self._known_address)
        self._tasks: set[asyncio.Task[Any]] = set()

    def cut_logs(self) -> None:
        """End all answers that follow a log, as where a connection is idle for too long."""
        self._server.cut_logs()

    async def __aenter__(self) -> "Kubelet":
        self._folder.mkdir(parents=True, exist_ok=True)
        await self._server.start()
        for node in self._nodes:
            await self._register(node)
        self._follow_task = asyncio.create_task(self._follow_forever())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._follow_task.cancel()
        lives = [task for _, task in self._lives.values()]
        for task in (*lives, *self._tasks):
            task.cancel()
        await asyncio.gather(self._follow_task, *lives, *self._tasks, return_exceptions=True)
        await self._server.close()
        self._block.close()
        for node in self._nodes:
            with suppress(ApiError):
                await self._api.delete(NODES, None, node)

    async def evict(self, namespace: str, name: str, reason: str = "EvictionByEvictionAPI") -> None:
        """Take a pod off its node as the eviction API or the scheduler does: marked as disrupted, then deleted."""
        await self.mark_disrupted(namespace, name, reason)
        await self._api.delete(PODS, namespace, name)

    async def drain(self, node: str) -> None:
        """Evict all pods of `node`, which takes no new ones, as `kubectl drain` does."""
        self._cordon(node)
        for life, _ in list(self._lives.values()):
            if life.pod["spec"].get("nodeName") == node and not life.exited:
                # Who owns the pods may delete the others as soon as the first is gone.
                with suppress(NotFound):
                    await self.evict(life.pod["metadata"]["namespace"], life.pod["metadata"]["name"])

    async def press(self, namespace: str, name: str) -> None:
        """Fail a pod as a node does that runs out of memory: the pod stays, as evicted by its kubelet."""
        pod = await self._api.get(PODS, namespace, name)
        life = self._lives.pop(pod["metadata"]["uid"])
        life[1].cancel()
        await asyncio.gather(life[1], return_exceptions=True)
        status = {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "The node was low on resource: memory.",
            "conditions": [_disrupted("TerminationByKubelet")],
        }
        await self._api.patch(PODS, namespace, name, {"status": status}, subresource="status")

    async def mark_disrupted(self, namespace: str, name: str, reason: str) -> None:
        """Give a pod the DisruptionTarget condition."""
        pod = await self._api.get(PODS, namespace, name)
        conditions = [*(pod["status"].get("conditions") or []), _disrupted(reason)]
        patch = {"status": {"conditions": conditions}}
        await self._api.patch(PODS, namespace, name, patch, subresource="status")
        life = self._lives.get(pod["metadata"]["uid"])
        if life is not None:
            life[0].pod["status"]["conditions"] = conditions

    async def lose_node(self, node: str) -> None:
        """Cut a node off: its pods stop without a word, its readiness is unknown, it takes no new pods."""
        self.go_silent(node)
        await self._post_readiness(node, "Unknown")

    def go_silent(self, node: str) -> None:
        """The same, as it is until the control plane has noticed."""
        self._cordon(node)
        for life, task in self._lives.values():
            if life.pod["spec"].get("nodeName") == node:
                life.lost = True
                task.cancel()

    def _cordon(self, node: str) -> None:
        self._nodes[node] = False
        self._turn = itertools.cycle([n for n, alive in self._nodes.items() if alive])

    def pods_on(self, node: str) -> list[str]:
        """Names of the pods that were started on `node`."""
        return [x.pod["metadata"]["name"] for x, _ in self._lives.values() if x.pod["spec"].get("nodeName") == node]

    def _log_of(self, namespace: str, name: str) -> Any:
        life = self._lives.get(self._names.get((namespace, name), ""))
        return life[0].log() if life is not None else None

    def _known_address(self, namespace: str, name: str) -> str | None:
        return self._addresses.get((namespace, name))

    async def _start_beside(self, namespace: str, name: str, command: Sequence[str]) -> Beside | None:
        life = self._lives.get(self._names.get((namespace, name), ""))
        return await life[0].start_beside(command) if life is not None else None

    async def _register(self, node: str) -> None:
        with suppress(ApiError):
            await self._api.create(NODES, None, {"metadata": {"name": node}})
        await self._post_readiness(node, "True")
        if not self._schedules:  # no controller runs here that would take a new node's taint away
            await self._api.patch(NODES, None, node, {"spec": {"taints": None}})

    async def _post_readiness(self, node: str, ready: str) -> None:
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "2000"}
        amounts.update({name: str(amount) for name, amount in self._capacity.items()})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.port}},
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": now_text()}],
            "capacity": amounts,
            "allocatable": amounts,
        }
        await self._api.patch(NODES, None, node, {"status": status}, subresource="status")

    async def _follow_forever(self) -> None:
        while True:
            try:
                await self._follow()
            except ApiError:
                pass  # the API server is away: a kubelet tries for ever
            except Exception:
                log.exception("defect in the kubelet")
            await asyncio.sleep(0.1)

    async def _follow(self) -> None:
        path = PODS.path(self._namespace)
        answer = await self._api.raw_get(path)
        for pod in answer["items"]:
            self._see({"apiVersion": "v1", "kind": "Pod", **pod})
        known = {p["metadata"]["uid"] for p in answer["items"]}
        for uid in set(self._lives) - known:
            self._drop(uid)
        version = answer["metadata"]["resourceVersion"]
        async with aclosing(self._api.watch(PODS, self._namespace, since=version)) as events:
            async for event in events:
                if event["type"] == "DELETED":
                    self._drop(event["object"]["metadata"]["uid"])
                elif event["type"] != "BOOKMARK":
                    self._see(event["object"])

    def _see(self, pod: Json) -> None:
        uid, spec = pod["metadata"]["uid"], pod["spec"]
        if uid in self._lives:
            self._lives[uid][0].follow(pod)
        elif not spec.get("nodeName"):
            mine = self._schedules and "schedulingGates" not in spec
            if mine and "deletionTimestamp" not in pod["metadata"]:
                self._spawn(self._schedule(pod))
        elif spec["nodeName"] in self._nodes and self._nodes[spec["nodeName"]]:
            self._start(pod)

    def _start(self, pod: Json) -> None:
        meta = pod["metadata"]
        address = self._address(pod, meta["name"])
        self._point_at_launcher(pod)
        folder = self._folder / meta["namespace"] / f"{meta['name']}-{meta['uid'][:8]}"
        life = PodLife(self._api, self._runtime, pod, address, folder, self._clock, self._pull_s)
        life.follow(pod)
        self._names[(meta["namespace"], meta["name"])] = meta["uid"]
        if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return
        self._lives[meta["uid"]] = (life, asyncio.create_task(life.live()))

    def _drop(self, uid: str) -> None:
        found = self._lives.pop(uid, None)
        if found is not None:
            found[1].cancel()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _schedule(self, pod: Json) -> None:
        meta = pod["metadata"]
        lacking = self._lacking(pod)
        if lacking:
            await self._refuse(pod, lacking)
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": next(self._turn)}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": target}
        with suppress(Conflict, NotFound):
            await self._api.create(subresource(PODS, meta["name"], "binding"), meta["namespace"], binding)

    def _lacking(self, pod: Json) -> str:
        for container in pod["spec"]["containers"]:
            for name, amount in ((container.get("resources") or {}).get("limits") or {}).items():
                if "/" in name and int(amount) > self._capacity.get(name, 0):
                    return str(name)
        return ""

    async def _refuse(self, pod: Json, lacking: str) -> None:
        meta = pod["metadata"]
        if any(c["type"] == "PodScheduled" for c in (pod.get("status") or {}).get("conditions") or []):
            return
        why = f"0/{len(self._nodes)} nodes are available: {len(self._nodes)} Insufficient {lacking}."
        patch = {"status": {"conditions": [new_condition("PodScheduled", "False", "Unschedulable", why)]}}
        with suppress(NotFound):
            await self._api.patch(PODS, meta["namespace"], meta["name"], patch, subresource="status")

    def _address(self, pod: Json, name: str) -> str:
        """The own address of loopback of `pod`, or of the launcher `name` of its job; the same for every such pod.

        A job in its node's network is there with its launcher, at the one address that all nodes have here.
        """
        namespace = pod["metadata"]["namespace"]
        if (namespace, name) not in self._addresses:
            node = self._node_address if pod["spec"].get("hostNetwork") else ""
            self._addresses[(namespace, name)] = node or self._block.next()
        return self._addresses[(namespace, name)]

    def _point_at_launcher(self, pod: Json) -> None:
        """Stand in for DNS: a host name of a pod in an environment value becomes its address."""
        for entry in pod["spec"]["containers"][0].get("env") or []:
            found = _DNS_NAME.match(str(entry.get("value") or ""))
            if found:
                address = self._address(pod, found["pod"])
                entry["value"] = f"{address}:{found['port']}"


def _disrupted(reason: str) -> Json:
    return new_condition("DisruptionTarget", "True", reason, f"{reason}: by the test")
