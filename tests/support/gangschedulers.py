"""Stand-ins for gang schedulers that are not Kubernetes' own: their CRDs, and a scheduler that honours minMember.

The CRDs have the fields that the operator may write; another is dropped, and so found out. The scheduler knows
devices, and nothing else of nodes.
"""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.errors import Conflict, NotFound
from ringtrain_operator.cluster.api.resources import NODES, PODS, ApiResource, pod_groups
from ringtrain_operator.placement.gangs import SCHEDULERS
from support.kubelet.pod import new_condition
from support.objects import subresource
from support.standin import again_and_again

Json = dict[str, Any]
NOT_HELPFUL = "Preemption is not helpful for scheduling"
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


def groups_of(name: str) -> ApiResource:
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
    async with again_and_again(lambda: _schedule(api, namespace, name)):
        yield


@asynccontextmanager
async def placing_pod_by_pod(api: ApiClient, namespaces: Sequence[str]) -> AsyncIterator[None]:
    """Meanwhile each pod of the namespaces is placed by itself, or refused in kube-scheduler's words."""
    async with again_and_again(lambda: _schedule_each(api, namespaces)):
        yield


async def _schedule_each(api: ApiClient, namespaces: Sequence[str]) -> None:
    pods = [pod for namespace in namespaces for pod in await api.select(PODS, namespace)]
    nodes = await api.select(NODES)
    free = _room(nodes, pods)
    for pod in pods:
        if pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
            continue
        if pod["spec"].get("nodeSelector"):  # the nodes have no labels
            why = "node(s) didn't match Pod's node affinity/selector"
            await _say_unschedulable(api, pod, _words(len(nodes), why))
        elif node := free.place(pod):
            await _bind(api, pod, node)
        else:
            await _say_unschedulable(api, pod, _words(len(nodes), f"Insufficient {next(iter(_devices(pod)))}"))


def _words(nodes: int, why: str) -> str:
    """Return kube-scheduler 1.34's message for a pod that it cannot place."""
    of_none = f"0/{nodes} nodes are available: {nodes}"
    helps = "No preemption victims found for incoming pod" if "Insufficient" in why else NOT_HELPFUL
    return f"{of_none} {why}. no new claims to deallocate, preemption: {of_none} {helps}."


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
            await _bind(api, pod, node)


async def _bind(api: ApiClient, pod: Json, node: str) -> None:
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
            await api.patch(groups_of(name), namespace, group["metadata"]["name"], {"status": {"conditions": [told]}})
        return
    for pod in pods:
        await _say_unschedulable(api, pod, words)


async def _say_unschedulable(api: ApiClient, pod: Json, words: str) -> None:
    meta, conditions = pod["metadata"], (pod.get("status") or {}).get("conditions") or []
    if any(c["type"] == "PodScheduled" and c.get("message") == words for c in conditions):
        return
    patch = {"status": {"conditions": [new_condition("PodScheduled", "False", "Unschedulable", words)]}}
    with suppress(NotFound):
        await api.patch(PODS, meta["namespace"], meta["name"], patch, subresource="status")


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
