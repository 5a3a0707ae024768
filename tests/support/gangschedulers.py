"""Stand-ins for gang schedulers that are not Kubernetes' own: their CRDs, and a scheduler that honours minMember.

The CRDs have the fields that the operator may write; another is dropped, and so found out. The scheduler knows
devices, and nothing else of nodes.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ringtrain_operator.build import SCHEDULERS
from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.errors import ApiError, Conflict, NotFound
from ringtrain_operator.cluster.api.resources import NODES, PODS, Resource, pod_groups
from support.kubelet.pod import now_text
from support.objects import subresource

Json = dict[str, Any]
PAUSE_S = 0.05
_ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_COUNT = {"type": "integer", "format": "int32"}
_TEXT = {"type": "string"}


def _crd(name: str, spec: Json, status_subresource: bool) -> Json:
    api = SCHEDULERS[name]
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": spec}, "status": _ANYTHING},
    }
    version: Json = {"name": api.versions[0], "served": True, "storage": True}
    version["schema"] = {"openAPIV3Schema": schema}
    if status_subresource:
        version["subresources"] = {"status": {}}
    names = {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup", "listKind": "PodGroupList"}
    approval = {"api-approved.kubernetes.io": "unapproved, for tests"}  # groups below k8s.io ask for it
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"podgroups.{api.api_group}", "annotations": approval},
        "spec": {"group": api.api_group, "names": names, "scope": "Namespaced", "versions": [version]},
    }


_TOPOLOGY = {
    "type": "object",
    "properties": {
        "mode": {"type": "string", "enum": ["hard", "soft"], "default": "hard"},
        "highestTierAllowed": {"type": "integer", "default": 1},
    },
}
CRDS = (
    _crd("Coscheduling", {"minMember": _COUNT, "scheduleTimeoutSeconds": _COUNT}, status_subresource=True),
    _crd(
        "Volcano",
        {
            "minMember": _COUNT,
            "queue": {"type": "string", "default": "default"},
            "priorityClassName": _TEXT,
            "networkTopology": _TOPOLOGY,
        },
        status_subresource=False,
    ),
)


def groups_of(name: str) -> Resource:
    """The PodGroups of a gang scheduler, in its last version that these tests know."""
    api = SCHEDULERS[name]
    return pod_groups(f"{api.api_group}/{api.versions[-1]}")


@dataclass(frozen=True)
class _Free:
    """Devices that nodes have left."""

    nodes: dict[str, Counter[str]]

    def place(self, pod: Json) -> str:
        """A node with room for the pod, which has it from now on; empty: none has."""
        wanted = _devices(pod)
        for name, left in self.nodes.items():
            if all(left[device] >= amount for device, amount in wanted.items()):
                left.subtract(wanted)
                return name
        return ""


@asynccontextmanager
async def standing_in(api: ApiClient, namespace: str, name: str) -> AsyncIterator[None]:
    """Meanwhile gangs of the namespace are placed as the gang scheduler `name` would place them."""
    task = asyncio.create_task(_schedule_forever(api, namespace, name))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _schedule_forever(api: ApiClient, namespace: str, name: str) -> None:
    while True:
        with suppress(ApiError):
            await _schedule(api, namespace, name)
        await asyncio.sleep(PAUSE_S)  # a stand-in may be slow: nothing is measured with it


async def _schedule(api: ApiClient, namespace: str, name: str) -> None:
    pods = [p for p in await api.select(PODS, namespace) if "deletionTimestamp" not in p["metadata"]]
    groups = {g["metadata"]["name"]: g for g in await api.select(groups_of(name), namespace)}
    free = _room(await api.select(NODES), pods)
    gangs: dict[str, list[Json]] = defaultdict(list)
    for pod in pods:
        if pod["spec"].get("schedulerName") == SCHEDULERS[name].scheduler_name:
            gangs[_group_of(pod)].append(pod)
    for group, members in gangs.items():
        if group in groups:
            await _place(api, name, groups[group], members, free)


async def _place(api: ApiClient, name: str, group: Json, members: list[Json], free: _Free) -> None:
    waiting = [pod for pod in members if not pod["spec"].get("nodeName")]
    trial = _Free({node: Counter(left) for node, left in free.nodes.items()})
    found = {pod["metadata"]["name"]: trial.place(pod) for pod in waiting}
    placed = len(members) - len(waiting) + sum(map(bool, found.values()))
    if placed < group["spec"]["minMember"]:
        if len(members) >= group["spec"]["minMember"]:
            await _refuse(api, name, group, waiting, f"{placed}/{len(members)} pods of the gang find room")
        return
    for pod in waiting:
        if node := free.place(pod):
            meta, target = pod["metadata"], {"apiVersion": "v1", "kind": "Node", "name": node}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": target}
            with suppress(Conflict, NotFound):
                await api.create(subresource(PODS, meta["name"], "binding"), meta["namespace"], body)


async def _refuse(api: ApiClient, name: str, group: Json, pods: Iterable[Json], words: str) -> None:
    """Volcano tells it in the group, coscheduling in the pods."""
    namespace = group["metadata"]["namespace"]
    if name == "Volcano":
        told = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": words}
        if (group.get("status") or {}).get("conditions") != [told]:
            await api.patch(
                groups_of(name), namespace, group["metadata"]["name"], {"status": {"conditions": [told]}}
            )
        return
    for pod in pods:
        conditions = (pod.get("status") or {}).get("conditions") or []
        if any(c["type"] == "PodScheduled" and c.get("message") == words for c in conditions):
            continue
        told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
        patch = {"status": {"conditions": [{**told, "lastTransitionTime": now_text()}]}}
        with suppress(NotFound):
            await api.patch(PODS, namespace, pod["metadata"]["name"], patch, subresource="status")


def _group_of(pod: Json) -> str:
    meta = pod["metadata"]
    by_label = (meta.get("labels") or {}).get("scheduling.x-k8s.io/pod-group")
    return str(by_label or (meta.get("annotations") or {}).get("scheduling.k8s.io/group-name") or "")


def _room(nodes: Iterable[Json], pods: Iterable[Json]) -> _Free:
    left = {n["metadata"]["name"]: _extended(n["status"].get("allocatable") or {}) for n in nodes}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node in left and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            left[node].subtract(_devices(pod))
    return _Free(left)


def _devices(pod: Json) -> Counter[str]:
    return _extended((pod["spec"]["containers"][0].get("resources") or {}).get("limits") or {})


def _extended(amounts: Mapping[str, Any]) -> Counter[str]:
    return Counter({name: int(amount) for name, amount in amounts.items() if "/" in name})
